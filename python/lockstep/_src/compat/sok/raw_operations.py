"""Names of SOK's operations for GPUs, which have no counterpart here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn


class NoCounterpartError(NotImplementedError, AttributeError):
    """The use of an operation for GPUs. It is an AttributeError as well, so `hasattr` returns False."""


def refusing(module: str, instead: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Returns `__getattr__` of a module with operations for GPUs.

    Args:
      module: the module's name.
      instead: for each operation what programs use here.
    """

    def get(name: str) -> NoReturn:
        if name in instead:
            raise NoCounterpartError(
                f"{module}.{name}: SOK's operations for GPUs have no counterpart here; use {instead[name]}"
            )
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get
