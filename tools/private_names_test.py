import ast

import private_names
import pytest

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

MODULES = {"p.a", "p.b", "p.c", "p.tables"}


def _uses(text: str) -> list[str]:
    """Returns the uses in the module p.c, as "line: text of module"."""
    found = private_names.uses(ast.parse(text), "p.c", "p", MODULES)
    return [f"{use.line}: {use.text} of {use.module}" for use in found]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from p.a import _f", "1: _f of p.a"),
        ("from .a import _f as f", "1: _f of p.a"),
        ("from p import a\na._f()", "2: a._f of p.a"),
        ("from p import a as b\nb.table._f", "2: b.table._f of p.a"),
        ("from p.a import context\ncontext._lane = 1", "2: context._lane of p.a"),
        ("def f():\n  from p.a import context\n  context._lane", "3: context._lane of p.a"),
        ("from p.a import T\ndef f(t: T): t._x", "2: t._x of p.a"),
        ("from p.a import T\ndef f(*, t: T | None = None): t._x", "2: t._x of p.a"),
        ("from p import a\ndef f(t: 'a.T'): t._x", "2: t._x of p.a"),
        ("from p.a import T\nasync def f(t: T): t._x", "2: t._x of p.a"),
        ("from p.a import T\ndef f():\n  t: T = g()\n  t._x", "4: t._x of p.a"),
        ("from p.a import T\ndef f():\n  t = T()\n  u = t\n  u._x", "5: u._x of p.a"),
        ("from p.a import T\nT()._x", "2: T()._x of p.a"),
        ("from p import a\na.T()._x", "2: a.T()._x of p.a"),
        ("from p import a\na.T._x", "2: a.T._x of p.a"),
        (
            "from p.a import T\nclass C:\n  def f(self): self.t._x\n  def __init__(self, t: T): self.t = t",
            "3: self.t._x of p.a",
        ),
        ("from p.a import T\nclass C:\n  t: T\n  def f(self): self.t._x", "4: self.t._x of p.a"),
        ("from p.a import T\nclass C:\n  def f(self): self.t, self.u = 1, T(); self.u._x", "3: self.u._x of p.a"),
    ],
)
def test_a_private_name_of_another_module_is_found(text, found):
    assert _uses(text) == [found]


@pytest.mark.parametrize(
    "text",
    [
        "from p.a import T, f\nf(); T().x; T().__dict__",
        "from numpy import _x\nimport tensorflow as tf\ntf._x",
        "from p.c import T\ndef f(t: T): t._x",  # its own name
        "class T: _x = 1\ndef f(t: T): t._x",
        "from p.a import T\nclass C(T):\n  def f(self): self._x, super()._x",
        "from p.a import context\ndef f(context): context._x",  # another object of this name
        "from p.a import context\ng = lambda context: context._x",
        "from p.a import context\ndef f():\n  for context in g(): context._x",
        "from p.a import T\nfrom p.b import U\ndef f(t: T | U): t._x",  # one of two types
        "from p.a import make\ndef f():\n  t = make()\n  t._x",  # a function, by its name
    ],
)
def test_other_names_pass(text):
    assert _uses(text) == []
