"""Tests of hooks of a period that several users need."""

import gc
import threading

import pytest

from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook_set import HookSet


class Base:
    def f(self):
        return "base"

    def g(self):
        return "base"


_OWN = dict(vars(Base))


def is_restored():
    return vars(Base)["f"] is _OWN["f"] and vars(Base)["g"] is _OWN["g"]


def replace_f(interception):
    interception.replace_attribute(Base, "f", lambda f: lambda self: "f over " + f(self))


def replace_g(interception):
    interception.replace_attribute(Base, "g", lambda g: lambda self: "g over " + g(self))


@pytest.fixture
def hooks():
    return HookSet(symbols.SCOPE, replace_f)


def test_hooks_last_from_the_first_user_to_the_last(hooks):
    hooks.hold("a")
    hooks.hold("b")
    hooks.hold("b")
    hooks.release("a")
    assert Base().f() == "f over base"
    hooks.release("b")
    hooks.release("b")
    assert is_restored()


def test_nested_users_replace_once(hooks):
    with hooks.held():
        with hooks.held():
            assert Base().f() == "f over base"
        assert Base().f() == "f over base"
    assert is_restored()


def test_an_error_inside_restores_as_well(hooks):
    with pytest.raises(ZeroDivisionError), hooks.held():
        raise ZeroDivisionError
    assert is_restored()


def test_users_of_two_threads_overlap(hooks):
    entered, leave = threading.Event(), threading.Event()

    def other():
        with hooks.held():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with hooks.held():
        thread.start()
        assert entered.wait(60)
    assert Base().f() == "f over base"
    leave.set()
    thread.join(60)
    assert is_restored()


def test_hooks_that_cannot_be_installed_leave_nothing_behind():
    def fails(interception):
        replace_f(interception)
        interception.replace_attribute(Base, "no_such", lambda f: f)

    hooks = HookSet(symbols.SCOPE, fails)
    with pytest.raises(AttributeError, match="no_such"):
        hooks.hold("a")
    assert is_restored()


def test_further_hooks_are_in_force_with_the_set(hooks):
    with hooks.held():
        hooks.add(replace_g)
        hooks.add(replace_g)
        assert Base().g() == "g over base"
    assert is_restored()
    with hooks.held():
        assert Base().g() == "g over base"
    assert is_restored()


def test_hooks_of_objects_last_until_a_release_after_the_last_object(hooks):
    first, second = Base(), Base()
    hooks.hold_for(first)
    hooks.hold_for(second)
    del first
    gc.collect()
    other = HookSet(symbols.SCOPE)
    other.release("a scope that ends")
    assert Base().f() == "f over base"
    del second
    gc.collect()
    other.release("another")
    assert is_restored()


def test_hooks_of_objects_are_installed_once_when_objects_come_and_go(hooks):
    hooks.hold_for(Base())
    gc.collect()
    last = Base()
    hooks.hold_for(last)
    assert Base().f() == "f over base"
    del last
    gc.collect()
    hooks.release("nobody")
    assert is_restored()
