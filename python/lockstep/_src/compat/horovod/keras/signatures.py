"""Functions that two of Horovod's modules have, some with their parameters in different orders."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any


def function_of(
    module: str, declared: Callable[..., Any], moved: Sequence[str] = (), before: str = "", **bound: Any
) -> Callable[..., Any]:
    """Returns a function of a module that calls another one, and has its name, docstring and parameters.

    Args:
      module: the name of the module.
      declared: the other function; it is called with all arguments by name.
      moved: the parameters that move, in their order.
      before: the parameter before which they come.
      **bound: arguments of `declared` that are not parameters of the result.
    """
    signature = inspect.signature(declared)
    order = [name for name in signature.parameters if name not in moved and name not in bound]
    at = order.index(before) if moved else 0
    order[at:at] = moved
    signature = signature.replace(parameters=[signature.parameters[name] for name in order])

    @functools.wraps(declared)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return declared(**bound, **given.arguments)

    call.__module__ = module
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
