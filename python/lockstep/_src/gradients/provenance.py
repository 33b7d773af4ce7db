"""Finds out which gradients have been exchanged, so that each is exchanged exactly once.

`mark` marks the results of an exchange. The marks answer three questions:

`origin`: where does this gradient come from? In a graph, the gradient may be computed from marked ones, for example by
clipping. It counts as exchanged if everything else from which it is computed is the same on every rank: constants,
variables, results of collectives. The gradient of an exchanged gradient is a rank's own. Eager tensors have no history:
only the tensor's own mark counts.

`Watch`: was anything exchanged inside of a call?

`delivered_by_tapes`, and a set for each optimizer: were gradients of this variable returned, and not applied yet? This
question is for eager tensors, because a program may have changed them since.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from lockstep._src.collectives.slices import values_of
from lockstep._src.gradients.variable_sets import VariableSet
from lockstep._src.graph import alike, ancestry, parts

_MARK = "_lockstep_exchanged"
# Operations with the same result on all ranks; for resources, their values are the same.
_SAME_ON_ALL = frozenset(
    ("Const", "ReadVariableOp", "VarHandleOp", "VariableV2", "Variable", "IsVariableInitializedOp", "NoOp")
)
_COLLECTIVES = (
    "LockstepNamed",
    "LockstepAllReduce",
    "LockstepAllGather",
    "LockstepBroadcast",
    "LockstepGatherTable",
)
# These operations have a state if the functions that they call have one; only their inputs are considered.
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case"))


# Variables whose exchanged gradients tapes have returned, and no optimizer has applied yet.
delivered_by_tapes = VariableSet()


class Origin(enum.Enum):
    """The origin of a gradient."""

    LOCAL = "of this rank"
    EXCHANGED = "exchanged, or computed only from such"
    MIXED = "computed from exchanged ones and from what this rank has"


def _marked_in(graph: tf.Graph) -> set[tf.Operation]:
    # The set is an attribute of the graph, so that both live equally long. (An operation has a proxy of its graph.)
    if not hasattr(graph, _MARK):
        setattr(graph, _MARK, set())
    return getattr(graph, _MARK)


class _Count(threading.local):
    """The number of exchanges that this thread has marked."""

    exchanges = 0


_count = _Count()


class Watch:
    """A context manager that records whether this thread exchanged gradients inside the block."""

    def __enter__(self) -> Watch:
        self._before = _count.exchanges
        return self

    def __exit__(self, *error: Any) -> None:
        self.has_exchanged = _count.exchanges != self._before


def mark(gradients: Iterable[Any], is_alike: bool = False) -> None:
    """Marks gradients as exchanged; gradients that are None are skipped.

    Args:
      gradients: the results of an exchange.
      is_alike: whether the results are the same on all workers of the job.
    """
    _count.exchanges += 1
    for gradient in gradients:
        if gradient is None:
            continue
        tensor = values_of(gradient)
        if _has_graph(tensor):
            _marked_in(tensor.graph).add(tensor.op)
            if is_alike:
                alike.note(tensor)
        else:
            setattr(tensor, _MARK, True)


def _has_graph(tensor: Any) -> bool:
    return hasattr(tensor, "graph")


def origin(gradient: Any, unrelated: set[Any]) -> Origin:
    """Returns the origin of a gradient.

    Args:
      gradient: a tensor or IndexedSlices.
      unrelated: operations that are known not to be computed from exchanged gradients. This call adds more. Pass the
        same set to several calls.
    """
    tensor = values_of(gradient)
    if not _has_graph(tensor):
        return Origin.EXCHANGED if getattr(tensor, _MARK, False) else Origin.LOCAL
    if not ancestry.stems_from(tensor.op, _is_marked, unrelated):
        return Origin.LOCAL
    has_local = ancestry.stems_from(tensor.op, _is_local, set(), passed=_is_alike)
    return Origin.MIXED if has_local else Origin.EXCHANGED


def differing_in_graph(gradients: Iterable[Any]) -> list[int]:
    """Returns the places of a graph's gradients that may differ between workers; None is skipped.

    A gradient may differ unless it is computed only from exchanged ones. Examples are gradients of exchanged gradients,
    which this rank's batch affects, and gradients clipped by a norm that the program computes of this rank's part of a
    table.
    """
    unmarked: set[Any] = set()
    same: set[Any] = set()
    tensors = [(i, values_of(gradient)) for i, gradient in enumerate(gradients) if gradient is not None]
    return [
        i
        for i, tensor in tensors
        if not ancestry.stems_from(tensor.op, _is_marked, unmarked)
        or ancestry.stems_from(tensor.op, lambda op: parts.has_part(op) or _is_local(op), same, passed=_is_alike)
    ]


def _is_marked(op: tf.Operation) -> bool:
    return op in _marked_in(op.graph)


def _is_alike(op: tf.Operation) -> bool:
    """Returns whether an operation has the same result on all ranks."""
    return _is_marked(op) or op.type in _SAME_ON_ALL or op.type.startswith(_COLLECTIVES)


def _is_local(op: tf.Operation) -> bool:
    """Returns whether an operation has a result of this rank, regardless of its inputs."""
    if _is_alike(op):
        return False
    if alike.is_own(op):
        return True
    if op.type == "Placeholder":
        outer = ancestry.captured(op)
        return outer is None or not (_has_graph(outer) or outer.dtype in (tf.resource, tf.variant))
    return not op.inputs or (op.op_def.is_stateful and op.type not in _CALLS)
