"""Rows of the table of replaced symbols: the place of a symbol, and the signature that its replacement relies on."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pkgutil
import sys
from collections.abc import Mapping
from typing import Any

from lockstep._src.hooks import signatures

# In place of a signature: a name that the library does not have, and that is added.
ABSENT = "absent"
# The versions that the table is tested with.
VERSIONS = {
    "TensorFlow": ("2.15.1", "2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0", "2.21.0"),
    "Keras 2": ("2.15.0", "2.16.0", "2.17.0", "2.18.0", "2.19.0", "2.20.1", "2.21.0"),
    "Keras 3": ("3.15.1",),
    "Keras RS": ("0.4.0",),
}

# TensorFlow's name for Keras 2; Keras 3 has no models for graphs of TensorFlow 1.
_KERAS_OF_TENSORFLOW_1 = "tensorflow:compat.v1.keras."


class HookError(RuntimeError):
    """A symbol is missing or has another signature than its replacement relies on."""


@dataclasses.dataclass(frozen=True)
class Period:
    """A time in which symbols are replaced.

    Attributes:
      name: identifies the period.
      installed: when the symbols are replaced.
      undone: when they are restored.
    """

    name: str
    installed: str
    undone: str


@dataclasses.dataclass(frozen=True, eq=False)
class Hook:
    """A replaced symbol of TensorFlow, Keras or Keras RS: a row of the table, not a hook of a session.

    Attributes:
      symbol: "module:name", where the name may have dots. Modules of Keras 2 are written as modules of `tf_keras`.
      signature: what is relied on, see `signatures.is_as_relied_on`; or ABSENT.
      why: the reason, for each period in which the symbol is replaced.
      also: other places that hold the same object, and get the same replacement.
      subclasses: whether it is a method that is replaced in all subclasses that define it, too.
      only: the condition under which it is replaced; "" for always.
      optional: whether supported versions may lack the symbol.
    """

    symbol: str
    signature: str
    why: Mapping[Period, str]
    also: tuple[str, ...] = ()
    subclasses: bool = False
    only: str = ""
    optional: bool = False

    @property
    def name(self) -> str:
        """The last component of the symbol."""
        return _split(self.symbol)[1]

    @property
    def library(self) -> str:
        """The library of the symbol, a key of `VERSIONS`."""
        if self.symbol.startswith(_KERAS_OF_TENSORFLOW_1):
            return "Keras 2"
        root = self.symbol.partition(":")[0].partition(".")[0]
        return {"tf_keras": "Keras 2", "keras": "Keras 3", "keras_rs": "Keras RS"}.get(root, "TensorFlow")

    @functools.cache  # noqa: B019  rows of the table live as long as the process
    def of(self, keras: str) -> Hook:
        """Returns the hook for Keras 2 in the package `keras`."""
        return dataclasses.replace(self, symbol=self.symbol.replace("tf_keras", keras, 1))

    def places(self) -> list[tuple[Any, str]]:
        """Returns the owner of each place of the symbol, a class or a module, and the attribute's name there.

        Raises:
          HookError: there is no such owner, or no such attribute.
        """
        found = []
        for symbol in (self.symbol, *self.also):
            owner, name = _split(symbol)
            try:
                found.append((pkgutil.resolve_name(owner), name))
                if self.signature != ABSENT:
                    getattr(*found[-1])
            except (ImportError, AttributeError) as error:
                raise self._error(f"found none: {error}") from error
        return found

    def exists(self) -> bool:
        """Returns whether the symbol exists."""
        try:
            self.places()
        except HookError:
            return False
        return True

    def check(self) -> None:
        """Checks that the symbol is there, with the signature that is relied on.

        Raises:
          HookError: it is not.
        """
        owner, name = self.places()[0]
        if self.signature == ABSENT:
            return
        raw, value = inspect.getattr_static(owner, name), getattr(owner, name)
        if _accepted.get(self) is raw:
            return
        if not signatures.is_as_relied_on(raw, value, self.signature):
            raise self._error(f"found {signatures.describe(raw, value)}")
        _accepted[self] = raw

    def _error(self, found: str) -> HookError:
        return HookError(
            f"cannot replace {self.symbol}: wanted {self.signature}, {found}; with {_versions()}. Use a tested "
            f"version: {self.library} {', '.join(VERSIONS[self.library])}"
        )


# Hook -> the attribute that was checked, so that a program with a scope in each step checks it only once.
_accepted: dict[Hook, Any] = {}


def _split(symbol: str) -> tuple[str, str]:
    """Returns the symbol of the owner, and the attribute's name."""
    module, _, name = symbol.partition(":")
    owner, _, attribute = name.rpartition(".")
    return (f"{module}:{owner}" if owner else module), attribute


def _versions() -> str:
    loaded = {name: sys.modules.get(name) for name in ("tensorflow", "keras", "tf_keras", "keras_rs")}
    return ", ".join(f"{name} {getattr(module, '__version__', '?')}" for name, module in loaded.items() if module)
