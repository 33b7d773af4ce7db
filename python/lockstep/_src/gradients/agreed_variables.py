"""Comparison of the variables for which ranks have gradients, before gradients or changes of variables are sent."""

from __future__ import annotations

import collections
import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from lockstep._src.gradients.variable_sets import LocalVariableSet, key

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


def _places(variables: Sequence[Any], order: Sequence[Any] | None, local: LocalVariableSet) -> list[int]:
    """Returns numbers that distinguish variables of the same shape, the same on all ranks.

    Names do not: in TensorFlow 2 they are not unique, and Keras numbers layers, of which a rank may have more.

    Returns:
      For each variable its place in `order` among the variables of the same shape that are not local. So a rank's local
      variables don't count. Without an order, or if a variable is not in it, places in `variables`.
    """
    shared = [v for v, is_local in zip(order or [], local.among(order or []), strict=True) if not is_local]
    known = _counted([v for v in shared if v not in LocalVariableSet.anywhere])
    if any(key(v) not in known for v in variables):
        known = _counted(variables)
    return [known[key(v)] for v in variables]


def _counted(variables: Sequence[Any]) -> dict[int, int]:
    """Returns for each variable, by its key, how many of the same shape come before it."""
    counts: collections.defaultdict[str, Iterator[int]] = collections.defaultdict(itertools.count)
    return {key(v): next(counts[_shape_of(v)]) for v in variables}


def _shape_of(variable: Any) -> str:
    return str(getattr(variable, "shape", None))


def described(
    gradients: Sequence[Gradient], variables: Sequence[Any], order: Sequence[Any] | None, local: LocalVariableSet
) -> list[int]:
    """Returns numbers that must be the same on all ranks before gradients of these variables are sent.

    Otherwise gradients of one variable could be combined with another variable's gradients, or other ranks could wait
    for them forever.

    Args:
      gradients: the gradients; None for variables without one.
      variables: one for each gradient; local variables are left out.
      order: all possible variables, including this rank's local ones, in an order that is the same on all ranks apart
        from local ones; None if it isn't known.
      local: the local variables of this rank.

    Returns:
      [number of variables, number of variables with a gradient, a checksum of all].
    """
    are_local = local.among(variables)
    sent = [(g, v) for g, v, is_local in zip(gradients, variables, are_local, strict=True) if not is_local]
    kinds = [
        (isinstance(gradient, tf.IndexedSlices), gradient is None, _shape_of(variable), place)
        for (gradient, variable), place in zip(sent, _places([v for _, v in sent], order, local), strict=True)
    ]
    there = sum(gradient is not None for gradient, _ in sent)
    return [len(kinds), there, zlib.crc32(repr(kinds).encode()) & 0x7FFFFFFF]
