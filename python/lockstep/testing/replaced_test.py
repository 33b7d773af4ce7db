"""The comparison of symbols, with symbols of TensorFlow that the test replaces."""

import sys
import types

import keras
import pytest

from lockstep._src.hooks import symbols
from lockstep.testing.replaced import HAS_KERAS_3, HAS_KERAS_RS, Snapshot, installed_hooks, keras_2


class Base:
    """A class that counts as TensorFlow's."""

    number = 1

    def method(self):
        """Does nothing."""

    @property
    def size(self):
        """Nothing."""


class Derived(Base):
    """A class that inherits all from it."""


def _other(*_):
    """Stands in the place of others."""


@pytest.fixture(name="library")
def _library(monkeypatch):
    """Returns a module of TensorFlow's with a function and two classes."""
    module = types.ModuleType("tensorflow.a_module_of_the_test")
    module.function, module.Base, module.Derived, module.number = lambda: None, Base, Derived, 1
    for cls in (Base, Derived):
        monkeypatch.setattr(cls, "__module__", module.__name__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


NAME = "tensorflow.a_module_of_the_test"


@pytest.mark.parametrize(
    ("owner", "name", "value", "label"),
    [
        (None, "function", _other, f"{NAME}.function"),
        (Base, "method", _other, f"{NAME}.Base.method"),
        (Base, "size", property(_other), f"{NAME}.Base.size"),
        # It was inherited before.
        (Derived, "method", _other, f"{NAME}.Derived.method"),
        (Derived, "size", property(_other), f"{NAME}.Derived.size"),
        (None, "Base", Derived, f"{NAME}.Base"),
    ],
)
def test_a_symbol_that_is_replaced_is_found_until_it_is_restored(library, monkeypatch, owner, name, value, label):
    before = Snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(owner or library, name, value)
        assert before.replaced() == {(id(owner or library), name): label}
        assert before.differences() == ([label], [])
    assert before.replaced() == {}


@pytest.mark.parametrize("owner", [None, Base], ids=["a module's", "a class's"])
def test_values_that_are_no_code_may_change(library, monkeypatch, owner):
    before = Snapshot()
    monkeypatch.setattr(owner or library, "number", 2)
    assert before.replaced() == {}


def test_names_and_modules_that_are_added_do_not_count(library, monkeypatch):
    before = Snapshot()
    monkeypatch.setattr(library, "another", _other, raising=False)
    added = types.ModuleType("tensorflow.another_module_of_the_test")
    monkeypatch.setitem(sys.modules, added.__name__, added)
    added.function = _other
    assert before.replaced() == {}


def test_symbols_of_other_libraries_do_not_count(monkeypatch):
    before = Snapshot()
    monkeypatch.setattr(symbols, "Hook", _other)
    assert before.replaced() == {}


def test_rows_that_are_not_replaced_are_listed():
    """Outside of a scope, no row is replaced that only a scope replaces."""
    unlisted, untouched = Snapshot().differences("scope")
    assert unlisted == []
    assert len(untouched) > 10
    assert Snapshot().differences("no such period") == ([], [])


def test_installed_rows_are_those_of_the_installed_keras():
    assert (keras_2() == "keras") == (not HAS_KERAS_3)
    packages = {hook.symbol.partition(":")[0].partition(".")[0] for hook in installed_hooks()}
    assert packages == {"tensorflow", keras.__name__} | ({keras_2()} - {None}) | (
        {"keras_rs"} if HAS_KERAS_RS else set()
    )
