"""Functions that two of Horovod's modules have with their parameters in different orders."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any


def with_moved_parameters(
    declared: Callable[..., Any], moved: Sequence[str], before: str, calls: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns a function with the declaration of another one, but some of its parameters at another place.

    Args:
      declared: has the parameters, their defaults and the docstring.
      moved: the parameters that move, in their order.
      before: the parameter before which they come.
      calls: what is called, with all arguments by name; `declared` by default.
    """
    signature = inspect.signature(declared)
    order = [name for name in signature.parameters if name not in moved]
    order[order.index(before) : order.index(before)] = moved
    signature = signature.replace(parameters=[signature.parameters[name] for name in order])

    @functools.wraps(declared)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return (calls or declared)(**given.arguments)

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
