"""Checks of arguments of public classes and functions, so that errors come from the call that passes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def listed(owner: str, name: str, values: Any, fits: Callable[[Any], bool], wanted: str) -> list[Any]:
    """Returns the elements of an argument that is a list, of any kind.

    Args:
      owner: the class or function, for the message.
      name: the name of the argument.
      values: the argument; None: no elements.
      fits: returns whether an element has the right type.
      wanted: a description of a right argument, for the message.

    Raises:
      TypeError: the argument is text, a dict or a single value, or an element does not fit.
    """
    if values is None:
        return []
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"{owner}: {name} is {values!r}, wanted {wanted}")
    elements = list(values)
    for element in elements:
        if not fits(element):
            raise TypeError(f"{owner}: {name} has {element!r}, wanted {wanted}")
    return elements


def integer(owner: str, name: str, value: Any, least: int, optional: bool = True) -> None:
    """Checks that a value is an integer of at least `least`, or None if it is `optional`.

    Raises:
      TypeError: the value is not an integer.
      ValueError: it is too small, or None without being optional.
    """
    wanted = f"at least {least}" + (", or None" if optional else "")
    if value is None:
        if not optional:
            raise ValueError(f"{owner}: {name} is None, wanted {wanted}")
        return
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{owner}: {name} is {value!r}, wanted an integer, {wanted}")
    if value < least:
        raise ValueError(f"{owner}: {name} is {value}, wanted {wanted}")


def number(owner: str, name: str, value: Any) -> None:
    """Checks that a value is a number; raises TypeError for other types and for None."""
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(f"{owner}: {name} is {value!r}, wanted a number")


def text(owner: str, name: str, value: Any) -> None:
    """Checks that a value is a str; raises TypeError otherwise."""
    if not isinstance(value, str):
        raise TypeError(f"{owner}: {name} is {value!r}, wanted a str")
