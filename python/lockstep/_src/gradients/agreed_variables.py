"""What ranks have in common before gradients of variables, or their changes, travel: of which ones; and their names."""

from __future__ import annotations

import collections
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.gradients.variable_sets import LocalOnes, key

Gradient = tf.Tensor | tf.IndexedSlices | None


def prefix_of(name: str) -> str:
    """Begins names of tensors and operations; of another exchange in the same graph, they begin otherwise."""
    prefix = f"{name}_Allreduce"
    if tf.executing_eagerly():
        return prefix
    # Of the branch of a conditional, the graph around it: two branches may run at a time.
    graph = tf.compat.v1.get_default_graph()
    while type(graph).__name__ in ("CondBranchFuncGraph", "WhileBodyFuncGraph"):
        graph = graph.outer_graph
    return graph.unique_name(prefix)


def called(names: Sequence[str]) -> dict[str, Any]:
    """The arguments of a collective whose tensors have these names, in the scope that is open where they have one.

    In a graph the operation has the name, or the first one's, and each tensor the operation's: of a function that is
    called from two places, each call's operations have names of their own, and may run at the same time.
    """
    scope, _, name = names[0].rpartition("/")
    return {"names": names} if tf.executing_eagerly() or not scope else {"name": name}


def places(variables: Sequence[Any], order: Sequence[Any] | None, local: LocalOnes) -> list[int]:
    """What tells variables apart beside their shapes, the same on all ranks.

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
    """Of each variable, by its key, how many of its shape come before."""
    counts: collections.Counter[str] = collections.Counter()
    found = {}
    for v in variables:
        found[key(v)] = counts[_shape_of(v)]
        counts[_shape_of(v)] += 1
    return found


def _shape_of(variable: Any) -> str:
    return str(getattr(variable, "shape", None))


def agree(
    gradients: Sequence[Gradient], variables: Sequence[Any], places: Sequence[int], prefix: str, group: int = named.ALL
) -> list[Any]:
    """Fails, on all ranks, where they don't have gradients of the same variables.

    Otherwise those of one variable would meet those of another one, or be waited for in vain. Nothing is sent: what
    ranks differ in is the shape, [0, variables, those of them with a gradient, a checksum of which].

    Args:
      gradients: None where there is none.
      variables: one for each.
      places: likewise; see `places`.
      prefix: begins the name of what is asked, with "/" behind it, or "".
      group: of ranks.

    Returns:
      What has to run before anything travels.
    """
    kinds = [
        (isinstance(gradient, tf.IndexedSlices), gradient is None, _shape_of(variable), place)
        for gradient, variable, place in zip(gradients, variables, places, strict=True)
    ]
    there = sum(gradient is not None for gradient in gradients)
    nothing = tf.zeros([0, len(kinds), there, zlib.crc32(repr(kinds).encode()) & 0x7FFFFFFF], tf.int32)
    return named.allreduce([nothing], **called([f"{prefix}variables_with_gradients_which"]), group=group)
