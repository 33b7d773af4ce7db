import pytest

from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception


class Base:
    def f(self):
        return "base"


class Derived(Base):
    pass


def test_replaces_and_puts_back():
    interception = Interception(symbols.SCOPE)
    own = vars(Base)["f"]
    interception.replace_attribute(Base, "f", lambda f: lambda self: "new " + f(self))
    assert Derived().f() == "new base"
    interception.undo()
    assert vars(Base)["f"] is own


def test_what_was_inherited_is_inherited_again():
    interception = Interception(symbols.SCOPE)
    interception.replace_attribute(Derived, "f", lambda f: lambda self: "derived over " + f(self))
    assert Derived().f() == "derived over base" and Base().f() == "base"
    interception.undo()
    assert "f" not in vars(Derived) and Derived().f() == "base"


def test_undoes_in_reverse_order_and_only_once():
    interception = Interception(symbols.SCOPE)
    interception.replace_attribute(Base, "f", lambda f: lambda self: "1" + f(self))
    interception.replace_attribute(Base, "f", lambda f: lambda self: "2" + f(self))
    assert Base().f() == "21base"
    interception.undo()
    interception.undo()
    assert Base().f() == "base"


def test_an_attribute_that_does_not_exist_is_an_error_and_changes_nothing():
    interception = Interception(symbols.SCOPE)
    with pytest.raises(AttributeError, match="no_such"):
        interception.replace_attribute(Base, "no_such", lambda f: f)
    assert not hasattr(Base, "no_such")
