"""Finds attributes of TensorFlow and Keras that were replaced, by comparing all of them before and after."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_LIBRARIES = ("tensorflow", "keras", "tf_keras")


class Snapshot:
    """The functions, classes and properties of TensorFlow's and Keras' modules and classes, at one moment."""

    def __init__(self) -> None:
        self._before = {id(owner): (owner, dict(vars(owner))) for owner in _owners()}

    def replaced(self) -> dict[tuple[int, str], str]:
        """Returns those that are others now, by the owner's id and the name; with a text for messages.

        An attribute that a class has inherited, and now holds itself, is one of them. Submodules that were loaded
        since, and what modules hold since, are not.
        """
        found = {}
        for owner, before in self._before.values():
            now = vars(owner)
            for name in before.keys() | (now.keys() if isinstance(owner, type) else set()):
                own = before.get(name, now.get(name))
                if now.get(name) is not before.get(name) and _is_code(own) and name not in _OF_PYTHON:
                    found[id(owner), name] = f"{_label(owner)}.{name}"
        return found


# Attributes that Python itself changes.
_OF_PYTHON = ("__abstractmethods__", "_abc_impl")


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, property | staticmethod | classmethod | ModuleType)


def _owners() -> list[Any]:
    found: dict[int, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _LIBRARIES or not isinstance(module, ModuleType):
            continue
        found[id(module)] = module
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__.partition(".")[0] in _LIBRARIES:
                found[id(value)] = value
    return list(found.values())


def _label(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
