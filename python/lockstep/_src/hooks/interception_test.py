import sys
import types

import pytest

from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook import Hook
from lockstep._src.hooks.interception import Interception, around, attribute_replaced


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


def replaced(text, owner=Base):
    """Returns an interception that puts `text` before the result of a class's method `f`."""
    interception = Interception(symbols.SCOPE)
    interception.replace_attribute(owner, "f", lambda f: lambda self: text + f(self))
    return interception


def test_a_layer_is_taken_away_from_below_others():
    own = vars(Base)["f"]
    first, second, third = replaced("1"), replaced("2"), replaced("3")
    second.undo()
    assert Base().f() == "31base"
    first.undo()
    assert Base().f() == "3base"
    third.undo()
    assert vars(Base)["f"] is own


def test_layers_of_a_subclass_that_inherits_leave_the_base_alone():
    first, second = replaced("1", Derived), replaced("2", Derived)
    first.undo()
    assert (Derived().f(), Base().f()) == ("2base", "base")
    second.undo()
    assert "f" not in vars(Derived)


@pytest.mark.parametrize("own", [False, True])
def test_an_attribute_of_one_object_is_replaced_inside_a_block(own):
    one, other = Base(), Base()
    if own:
        one.f = lambda: "own"
    before = dict(vars(one))
    with pytest.raises(OSError, match="inside"), attribute_replaced(one, "f", lambda f: lambda: "1" + f()):
        with attribute_replaced(one, "f", lambda f: lambda: "2" + f()):
            assert (one.f(), other.f()) == ("21own" if own else "21base", "base")
        assert one.f() == ("1own" if own else "1base")
        raise OSError("inside")
    assert vars(one) == before and one.f() == ("own" if own else "base")
    with pytest.raises(AttributeError, match="no_such"), attribute_replaced(one, "no_such", lambda f: f):
        pass


def test_the_end_of_a_with_statement_restores_also_after_an_error():
    own = vars(Base)["f"]
    with pytest.raises(ZeroDivisionError), Interception(symbols.SCOPE) as interception:
        interception.replace_attribute(Base, "f", lambda f: lambda self: 1 / 0)
        Base().f()
    assert vars(Base)["f"] is own


@pytest.fixture
def library(monkeypatch):
    """Provides a module `replaced_library` that holds a function twice, and classes with a method."""
    module = types.ModuleType("replaced_library")
    module.read = module.load = lambda path: path
    module.Base, module.Derived = Base, Derived
    module.Own = type("Own", (Derived,), {"f": lambda self: "own"})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_function_in_several_places_has_one_replacement(library):
    hook = Hook("replaced_library:read", "(path)", {symbols.SCOPE: ""}, also=("replaced_library:load",))
    own = library.read
    with Interception(symbols.SCOPE) as interception:
        interception.replace(hook, lambda read: lambda path: "new " + read(path))
        assert library.read is library.load and library.load("a") == "new a"
    assert library.read is library.load is own


def test_a_method_is_replaced_in_subclasses_that_define_it(library):
    hook = Hook("replaced_library:Base.f", "(self)", {symbols.SCOPE: ""}, subclasses=True)
    with Interception(symbols.SCOPE) as interception:
        interception.replace(hook, lambda f: lambda self: "new " + f(self))
        assert [cls().f() for cls in (Base, Derived, library.Own)] == ["new base", "new base", "new own"]
    assert [cls().f() for cls in (Base, Derived, library.Own)] == ["base", "base", "own"]


def test_a_function_is_called_with_the_original_and_its_arguments(library):
    hook = Hook("replaced_library:Base.f", "(self)", {symbols.SCOPE: ""})
    own = Base.f
    with Interception(symbols.SCOPE) as interception:
        interception.replace(hook, around(lambda f, self: f"{f(self)} of {type(self).__name__}"))
        assert Base().f() == "base of Base" and Base.f.__name__ == "f" and Base.f.__wrapped__ is own
    assert Base.f is own


def test_a_symbol_that_is_replaced_is_checked_no_more(library):
    hook = Hook("replaced_library:read", "(path)", {symbols.SCOPE: ""})
    with Interception(symbols.SCOPE) as first, Interception(symbols.SCOPE) as second:
        first.replace(hook, lambda read: lambda: read("a"))
        second.replace(hook, lambda read: lambda: read() + "b")
        assert library.read() == "ab"
