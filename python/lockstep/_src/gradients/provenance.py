"""Which gradients have been exchanged already: so that none is exchanged twice, and none is left out.

What an exchange gives is marked. In a graph, a gradient that is computed from marked ones, clipped for instance, is
known by its graph. It is exchanged still if all else that it is computed from is the same on every rank: constants,
variables, what collectives gave. Eagerly tensors have no past: a tensor is marked itself, or it isn't.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from lockstep._src.graph import ancestry

_MARK = "_lockstep_exchanged"
# What gives the same on all ranks. Of resources, what they hold is meant.
_SAME_ON_ALL = frozenset(
    ("Const", "ReadVariableOp", "VarHandleOp", "VariableV2", "Variable", "IsVariableInitializedOp", "NoOp")
)
_COLLECTIVES = "LockstepNamed"
# They have a state where what they call has one; it is their inputs that tell.
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case"))


class Origin(enum.Enum):
    """Where a gradient comes from."""

    LOCAL = "of this rank"
    EXCHANGED = "exchanged, or computed from such alone"
    MIXED = "computed from exchanged ones and from what this rank has"


def _tensor(gradient: Any) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _marked_in(graph: tf.Graph) -> set[tf.Operation]:
    # With the graph, so that it goes with it. (An operation has a proxy of it.)
    if not hasattr(graph, _MARK):
        setattr(graph, _MARK, set())
    return getattr(graph, _MARK)


def mark(gradients: Iterable[Any]) -> None:
    """Notes that gradients have been exchanged. None is left out."""
    for gradient in gradients:
        if gradient is None:
            continue
        tensor = _tensor(gradient)
        if _has_graph(tensor):
            _marked_in(tensor.graph).add(tensor.op)
        else:
            setattr(tensor, _MARK, True)


def _has_graph(tensor: Any) -> bool:
    return hasattr(tensor, "graph")


def origin(gradient: Any, unrelated: set[Any]) -> Origin:
    """Where a gradient comes from.

    Args:
      gradient: a tensor or IndexedSlices.
      unrelated: operations that are known not to come from exchanged gradients; grows. Keep it over several calls.
    """
    tensor = _tensor(gradient)
    if not _has_graph(tensor):
        return Origin.EXCHANGED if getattr(tensor, _MARK, False) else Origin.LOCAL
    if not ancestry.stems_from(tensor.op, _is_marked, unrelated):
        return Origin.LOCAL
    return Origin.EXCHANGED if _has_nothing_local(tensor.op) else Origin.MIXED


def _is_marked(op: tf.Operation) -> bool:
    return op in _marked_in(op.graph)


def _captured(op: tf.Operation) -> Any:
    """What a placeholder of a function's graph stands for, from around it; None for an argument."""
    for outer, inner in getattr(op.graph, "captures", ()):
        if inner.op is op:
            return outer
    return None


def _has_nothing_local(op: tf.Operation) -> bool:
    seen: set[tf.Operation] = set()
    front = [op]
    while front:
        op = front.pop()
        if op in seen or _is_marked(op) or op.type in _SAME_ON_ALL or op.type.startswith(_COLLECTIVES):
            continue
        seen.add(op)
        if op.type == "Placeholder":
            outer = _captured(op)
            if outer is None:
                return False
            if _has_graph(outer):
                front.append(outer.op)
            elif outer.dtype not in (tf.resource, tf.variant):
                return False
            continue
        if not op.inputs or (op.op_def.is_stateful and op.type not in _CALLS):
            return False
        front.extend(source.op for source in op.inputs)
    return True
