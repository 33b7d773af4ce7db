"""The variables of which ranks have gradients: they compare them before gradients, or changes of variables, travel."""

from __future__ import annotations

import collections
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.gradients.variable_sets import LocalOnes, key

Gradient = tf.Tensor | tf.IndexedSlices | None


def places(variables: Sequence[Any], order: Sequence[Any] | None, local: LocalOnes) -> list[int]:
    """Returns numbers that tell variables of one shape apart, the same on all ranks.

    Names don't: in TensorFlow 2 they are no longer unique, and Keras counts layers, of which a rank may have more.

    Args:
      variables: which travel.
      order: all there may be, those of this rank among them, in an order that ranks have in common, but for those.
      local: of this rank.

    Returns:
      Places in `order` of what isn't local, among those of the same shape, so that what this rank alone has of other
      shapes, and trains by itself, doesn't count; where there is no order, or not all are in it, in `variables`.
    """
    shared = [v for v, is_local in zip(order or [], local.among(order or []), strict=True) if not is_local]
    known = _counted([v for v in shared if v not in LocalOnes.anywhere])
    if any(key(v) not in known for v in variables):
        known = _counted(variables)
    return [known[key(v)] for v in variables]


def _counted(variables: Sequence[Any]) -> dict[int, int]:
    """Returns for each variable, by its key, how many of its shape come before."""
    counts: collections.Counter[str] = collections.Counter()
    found = {}
    for v in variables:
        found[key(v)] = counts[_shape_of(v)]
        counts[_shape_of(v)] += 1
    return found


def _shape_of(variable: Any) -> str:
    return str(getattr(variable, "shape", None))


def described(gradients: Sequence[Gradient], variables: Sequence[Any], places: Sequence[int]) -> list[int]:
    """Returns what has to be the same on all ranks before gradients of these variables travel.

    Otherwise those of one variable would meet those of another one, or be waited for in vain.

    Args:
      gradients: None where there is none.
      variables: one for each.
      places: likewise; see `places`.

    Returns:
      [variables, those of them with a gradient, a checksum of which].
    """
    kinds = [
        (isinstance(gradient, tf.IndexedSlices), gradient is None, _shape_of(variable), place)
        for gradient, variable, place in zip(gradients, variables, places, strict=True)
    ]
    there = sum(gradient is not None for gradient in gradients)
    return [len(kinds), there, zlib.crc32(repr(kinds).encode()) & 0x7FFFFFFF]
