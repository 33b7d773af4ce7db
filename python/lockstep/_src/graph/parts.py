"""Tensors of which each worker has a part, such as the gradient of a table, which is spread like the table's rows.

A tensor is a part if it was noted, or if it is computed from a part by steps that keep its shape. Such steps are the
functions that a program applies to each element of a gradient. They may lead into branches and functions, and through
variables to which a part was assigned. `tf.IndexedSlices` are also recognized by their indices, which a program does
not change. Eager tensors have no history: only a tensor that was noted itself is a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lockstep._src.graph import ancestry

# An attribute of a graph, a set of (operation, number of the output); or of an eager tensor.
_NOTED = "_lockstep_parts"
# Results of this library's operations have been exchanged, or are noted where a program sees them.
_OWN_OPERATIONS = "Lockstep"


def note(value: Any) -> None:
    """Notes that each worker has a part of a tensor or of slices; the value of a variable, if it is a handle."""
    for tensor in (value.values, value.indices) if isinstance(value, tf.IndexedSlices) else (value,):
        if _has_graph(tensor):
            _noted_in(tensor.graph).add((tensor.op, tensor.value_index))
        else:
            setattr(tensor, _NOTED, True)


def note_variable(variable: Any) -> None:
    """Notes that a part was assigned to a variable."""
    note(variable.handle if hasattr(variable, "handle") else variable._variable)


def is_part(value: Any) -> bool:
    """Returns whether each worker has a part of a tensor or of slices; False for other objects."""
    if isinstance(value, tf.IndexedSlices):
        # The numbers of rows may have been selected or joined, so their shape does not tell.
        return _stems_from_part(value.indices, any_shape=True) or _stems_from_part(value.values)
    return isinstance(value, tf.Tensor) and _stems_from_part(value)


def has_part(op: tf.Operation) -> bool:
    """Returns whether one of an operation's outputs was noted."""
    noted = _noted_in(op.graph)
    return any((op, number) in noted for number in range(len(op.outputs)))


def _has_graph(tensor: Any) -> bool:
    return hasattr(tensor, "graph")


def _noted_in(graph: tf.Graph) -> set[tuple[tf.Operation, int]]:
    if not hasattr(graph, _NOTED):
        setattr(graph, _NOTED, set())
    return getattr(graph, _NOTED)


def _stems_from_part(tensor: tf.Tensor, any_shape: bool = False) -> bool:
    front, seen = [tensor], set()
    while front:
        tensor = front.pop()
        if not _has_graph(tensor):
            if getattr(tensor, _NOTED, False):
                return True
            continue
        key = (tensor.op, tensor.value_index)
        if key in seen:
            continue
        if key in _noted_in(tensor.graph):
            return True
        seen.add(key)
        front.extend(_sources(tensor, any_shape))
    return False


def _sources(tensor: tf.Tensor, any_shape: bool) -> Iterator[tf.Tensor]:
    """Yields the tensors from which a tensor is computed: only tensors of its shape, unless `any_shape`."""
    op = tensor.op
    if op.type.startswith(_OWN_OPERATIONS):
        return
    if (outer := ancestry.captured(op)) is not None:
        yield outer
    elif op.type in ("If", "StatelessIf") and hasattr(op, "_true_graph"):
        yield from (branch.outputs[tensor.value_index] for branch in (op._true_graph, op._false_graph))
    else:
        is_read = op.type == "ReadVariableOp"
        yield from (
            source for source in op.inputs if any_shape or is_read or tensor.shape.is_compatible_with(source.shape)
        )
