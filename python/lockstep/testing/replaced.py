"""A comparison of the table of replaced symbols with what is really replaced in TensorFlow and Keras."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Container
from types import ModuleType
from typing import Any

import keras

from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook import Hook
from lockstep._src.hooks.interception import all_subclasses

HAS_KERAS_3 = keras.__version__.startswith("3.")
HAS_KERAS_RS = HAS_KERAS_3 and importlib.util.find_spec("keras_rs") is not None
_LIBRARIES = ("tensorflow", "keras", "tf_keras", "keras_rs")
# Attributes that Python itself changes.
_CHANGED_BY_PYTHON = ("__abstractmethods__", "_abc_impl")

# A place of a symbol: the owner's id and the attribute's name.
Place = tuple[int, str]


def keras_2() -> str | None:
    """Returns the installed package of Keras 2: `keras` of old TensorFlow, `tf_keras` beside Keras 3, or None."""
    if not HAS_KERAS_3:
        return "keras"
    return None if importlib.util.find_spec("tf_keras") is None else "tf_keras"


def installed_hooks() -> list[Hook]:
    """Returns the rows of the table whose library is installed."""
    keras2, hooks = keras_2(), []
    installed = {"TensorFlow": True, "Keras 3": HAS_KERAS_3, "Keras RS": HAS_KERAS_RS}
    for hook in symbols.TABLE:
        if installed.get(hook.library):
            hooks.append(hook)
        elif hook.library == "Keras 2" and keras2 is not None:
            hooks.append(hook.of(keras2))
    return hooks


class Snapshot:
    """The functions, classes and properties of TensorFlow's and Keras' modules and classes, at one moment."""

    def __init__(self) -> None:
        self._before = {id(owner): (owner, dict(vars(owner))) for owner in _owners()}

    def replaced(self) -> dict[Place, str]:
        """Returns the places whose value has changed since, each with a text for messages.

        This includes an attribute that a class inherited before and now holds itself. It does not include submodules
        that were loaded since, nor names that were added to modules.
        """
        found = {}
        for owner, before in self._before.values():
            now = vars(owner)
            for name in before.keys() | (now.keys() if isinstance(owner, type) else set()):
                own = before.get(name, now.get(name))
                if now.get(name) is not before.get(name) and _is_code(own) and name not in _CHANGED_BY_PYTHON:
                    found[id(owner), name] = f"{_label(owner)}.{name}"
        return found

    def differences(self, *periods: str, only: Container[str] = ("",)) -> tuple[list[str], list[str]]:
        """Returns the symbols that are replaced but in no row, and those that are in a row but not replaced.

        Args:
          *periods: names of the periods that have begun since the snapshot.
          only: the conditions that hold, of those that rows name.
        """
        replaced, listed = self.replaced(), _places(periods, only)
        unlisted = sorted(replaced[place] for place in replaced.keys() - listed.keys())
        untouched = sorted(listed[place] for place in listed.keys() - replaced.keys())
        return unlisted, untouched


def _places(periods: tuple[str, ...], only: Container[str]) -> dict[Place, str]:
    """Returns the places of the rows.

    For Keras, only the package `keras` counts, which scopes look for first; Keras RS counts if it is loaded.
    """
    found = {}
    for hook in installed_hooks():
        is_other_keras = hook.symbol.startswith("tf_keras.")
        is_other_keras |= hook.library == "Keras RS" and "keras_rs" not in sys.modules
        is_other_keras |= hook.only == "Keras 3" and not HAS_KERAS_3
        holds = hook.only == "Keras 3" or hook.only in only
        if is_other_keras or not holds or not any(period.name in periods for period in hook.why):
            continue
        places = hook.places()
        if hook.subclasses:
            places += [(cls, hook.name) for cls in all_subclasses(places[0][0]) if hook.name in vars(cls)]
        found.update({(id(owner), name): f"{_label(owner)}.{name}" for owner, name in places if _is_of_library(owner)})
    return found


def _is_of_library(owner: Any) -> bool:
    name = owner.__module__ if isinstance(owner, type) else owner.__name__
    return name.partition(".")[0] in _LIBRARIES


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, property | staticmethod | classmethod | ModuleType)


def _owners() -> list[Any]:
    found: dict[int, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _LIBRARIES or not isinstance(module, ModuleType):
            continue
        found[id(module)] = module
        for value in list(vars(module).values()):
            if isinstance(value, type) and _is_of_library(value):
                found[id(value)] = value
    return list(found.values())


def _label(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
