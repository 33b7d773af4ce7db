"""Counts of a model's parameters, as `model.summary()` shows them: a sharded table counts with all of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from lockstep._src.hooks.hook import Hook
from lockstep._src.hooks.interception import Interception, around
from lockstep._src.tables.sharded.table import EitherShape


def intercept_counts(interception: Interception, hooks: Iterable[Hook]) -> None:
    """Makes Keras' functions that count parameters count whole tables during the interception.

    Args:
      interception: holds the replacements.
      hooks: the functions; each takes a list of weights.
    """
    for hook in hooks:
        interception.replace(hook, around(_count))


def _count(count: Callable[..., Any], weights: Iterable[Any]) -> Any:
    # A weight that is listed twice stays one object, because some functions count it once.
    whole: dict[int, Any] = {}
    return count([whole.setdefault(id(weight), _whole(weight)) for weight in weights])


def _whole(weight: Any) -> Any:
    """Returns what stands for a weight: for a sharded table, an object with the whole table's shape and its type."""
    shape = getattr(weight, "shape", None)
    return SimpleNamespace(shape=shape.logical, dtype=weight.dtype) if isinstance(shape, EitherShape) else weight
