"""Tells which gradients have been exchanged already, so that none is exchanged twice, and none is left out.

`mark` notes the results of an exchange. It answers three questions:

`origin`: where does this gradient come from? In a graph, one that is computed from marked ones, clipped for instance,
is known by its graph. It counts as exchanged if everything else that it is computed from is the same on every rank:
constants, variables, results of collectives. Eager tensors have no past: a tensor is marked itself, or it isn't.

`Watch`: was anything exchanged inside of a call?

`delivered_by_tapes`, and a set of each optimizer: were gradients of this variable handed out, and not applied yet? This
is asked of eager tensors, because a program may have changed them since.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from lockstep._src.gradients.variable_sets import Noted
from lockstep._src.graph import alike, ancestry

_MARK = "_lockstep_exchanged"
# Operations that give the same on all ranks; of resources, the values that they hold are meant.
_SAME_ON_ALL = frozenset(
    ("Const", "ReadVariableOp", "VarHandleOp", "VariableV2", "Variable", "IsVariableInitializedOp", "NoOp")
)
_COLLECTIVES = "LockstepNamed"
# They have a state where what they call has one; it is their inputs that tell.
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case"))


# Variables whose exchanged gradients tapes have handed out, which may come to any optimizer, and not been applied yet.
delivered_by_tapes = Noted()


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


class _Count(threading.local):
    """How many exchanges this thread has marked."""

    exchanges = 0


_count = _Count()


class Watch:
    """Tells whether gradients were exchanged inside of a `with` block, by this thread."""

    def __enter__(self) -> Watch:
        self._before = _count.exchanges
        return self

    def __exit__(self, *error: Any) -> None:
        self.has_exchanged = _count.exchanges != self._before


def mark(gradients: Iterable[Any], is_alike: bool = False) -> None:
    """Notes that gradients have been exchanged. None is left out.

    Args:
      gradients: what an exchange gave.
      is_alike: whether it gave the same on all workers of the job.
    """
    _count.exchanges += 1
    for gradient in gradients:
        if gradient is None:
            continue
        tensor = _tensor(gradient)
        if _has_graph(tensor):
            _marked_in(tensor.graph).add(tensor.op)
            if is_alike:
                alike.note(tensor)
        else:
            setattr(tensor, _MARK, True)


def _has_graph(tensor: Any) -> bool:
    return hasattr(tensor, "graph")


def origin(gradient: Any, unrelated: set[Any]) -> Origin:
    """Returns where a gradient comes from.

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


def local_in_graph(gradients: Iterable[Any]) -> list[int]:
    """Returns the places of gradients of a graph that no exchanged one has a part in. None is left out."""
    unrelated: set[Any] = set()
    tensors = [(i, _tensor(gradient)) for i, gradient in enumerate(gradients) if gradient is not None]
    return [i for i, tensor in tensors if not ancestry.stems_from(tensor.op, _is_marked, unrelated)]


def _is_marked(op: tf.Operation) -> bool:
    return op in _marked_in(op.graph)


def _captured(op: tf.Operation) -> Any:
    """Returns the tensor around a function's graph that a placeholder stands for; None for an argument."""
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
