"""Values of a graph that are the same on all workers because they were exchanged, and values that may differ."""

from __future__ import annotations

import functools

import tensorflow as tf

from lockstep._src.graph import ancestry

# The collection of operations. A collection whose key is not a string stays out of exported graphs.
_ALIKE = ("lockstep", "alike")
# An attribute of a graph: the operations whose results are this worker's own.
_OWN = "_lockstep_own"


def note(tensor: tf.Tensor) -> None:
    """Notes that a tensor of a graph is the same on all workers."""
    tf.compat.v1.add_to_collection(_ALIKE, tensor.op)


def note_own(tensor: tf.Tensor) -> None:
    """Notes that a tensor of a graph is this worker's own, even if it is computed from exchanged tensors."""
    if not hasattr(tensor.graph, _OWN):
        setattr(tensor.graph, _OWN, set())
    getattr(tensor.graph, _OWN).add(tensor.op)


def is_own(op: tf.Operation) -> bool:
    """Returns whether `note_own` was called with a result of an operation."""
    return op in getattr(op.graph, _OWN, ())


def _gives_data(op: tf.Operation) -> bool:
    return op.type.startswith(("Placeholder", "IteratorGetNext")) and ancestry.captured(op) is None


def differs(value: tf.Tensor) -> bool:
    """Returns whether a value may differ between workers.

    It may if it depends on data by a path that does not lead through a noted tensor.
    """
    alike = functools.cache(lambda graph: frozenset(graph.get_collection(_ALIKE)))
    return ancestry.stems_from(
        value.op,
        _gives_data,
        set(),
        passed=lambda op: op in alike(op.graph),
    )
