"""Values of a graph that are the same on all workers because they were exchanged, and values that may differ."""

from __future__ import annotations

import functools

import tensorflow as tf

from lockstep._src.graph import ancestry

# Operations. A collection whose key is no string stays out of exported graphs.
_ALIKE = ("lockstep", "alike")


def note(tensor: tf.Tensor) -> None:
    """Notes that a tensor of a graph is the same on all workers."""
    tf.compat.v1.add_to_collection(_ALIKE, tensor.op)


def _gives_data(op: tf.Operation) -> bool:
    if op.type.startswith("Placeholder"):
        # In a branch or a body it may be what was captured from around it.
        return all(inner.op is not op for _, inner in getattr(op.graph, "captures", ()))
    return op.type.startswith("IteratorGetNext")


def differs(value: tf.Tensor) -> bool:
    """Whether a value may differ between workers: data has a part in it in another way than through what is alike."""
    alike = functools.cache(lambda graph: frozenset(graph.get_collection(_ALIKE)))
    return ancestry.stems_from(
        value.op,
        _gives_data,
        set(),
        passed=lambda op: op in alike(op.graph),
    )
