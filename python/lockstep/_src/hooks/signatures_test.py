"""Tests of signatures that hooks rely on, and of those that Python reports."""

import math

import pytest

from lockstep._src.hooks.signatures import CLASS, MODULE, PROPERTY, describe, is_as_relied_on


def plain(self, value, name=None, *, deep=False):
    pass


def annotated(value: int, name: str = "x") -> str:
    pass


def any_call(*args, **kwargs):
    pass


class Owner:
    @property
    def size(self):
        return 0


@pytest.mark.parametrize(
    "function, relied_on",
    [
        (plain, "(self, value, name=None, *, deep=False)"),
        (plain, "(self, value, name=..., *, deep=...)"),
        (plain, "(self, value, ...)"),
        (plain, "(self, ...)"),
        (plain, "(...)"),
        (annotated, "(value, name='x')"),
        (any_call, "(self, value, name=None)"),
        (any_call, "(*args, **kwargs)"),
        (object.__init_subclass__, "(...)"),
        (math, MODULE),
        (Owner, CLASS),
        (vars(Owner)["size"], PROPERTY),
    ],
)
def test_accepts_what_is_relied_on(function, relied_on):
    assert is_as_relied_on(function, function, relied_on)


@pytest.mark.parametrize(
    "function, relied_on, found",
    [
        (plain, "(self, value)", "(self, value, name=None, *, deep=False)"),
        (plain, "(self, values, ...)", "(self, value, name=None, *, deep=False)"),
        (plain, "(value, self, ...)", "(self, value, name=None, *, deep=False)"),
        (plain, "(self, value=None, ...)", "(self, value, name=None, *, deep=False)"),
        (plain, "(self, value, name, ...)", "(self, value, name=None, *, deep=False)"),
        (plain, "(self, value, name='', ...)", "(self, value, name=None, *, deep=False)"),
        (plain, "(self, value, name=None, deep=False)", "(self, value, name=None, *, deep=False)"),
        (annotated, "(value)", "(value, name='x')"),
        (annotated, "(value, name='x', more=None)", "(value, name='x')"),
        (plain, PROPERTY, "(self, value, name=None, *, deep=False)"),
        (math, "(...)", MODULE),
        (Owner, "(...)", CLASS),
        (vars(Owner)["size"], "(self)", PROPERTY),
    ],
)
def test_refuses_another_signature_and_describes_it(function, relied_on, found):
    assert not is_as_relied_on(function, function, relied_on)
    assert describe(function, function) == found
