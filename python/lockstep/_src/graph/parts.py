"""Tensors of which each worker has a part, such as the gradient of a table, which is spread like the table's rows.

A tensor is a part if it was noted, or if it is computed from a part by steps that keep its shape. Such steps are the
functions that a program applies to each element of a gradient. They may lead into functions, branches and loops and out
of them, and through variables to which a part was assigned. `tf.IndexedSlices` are also recognized by their indices,
which a program does not change. Eager tensors have no history: only a tensor that was noted itself is a part.

A step whose result has no known rank, such as `tf.py_function`, is not followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lockstep._src.graph import ancestry

# An attribute of a graph, a set of (operation, number of the output); or of an eager tensor.
_NOTED = "_lockstep_parts"
# The attribute of operations that compute the numbers of the shard's rows that a lookup reads and its gradient changes
# (tf/lookup/shard_rows.h).
SHARD_ROWS = "lockstep_shard_rows"
_LOOPS = ("While", "StatelessWhile")
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
        # The numbers of rows may have been selected or joined, so their shape does not show it.
        return _stems_from_part(value.indices, are_indices=True) or _stems_from_part(value.values)
    return isinstance(value, tf.Tensor) and _stems_from_part(value)


def has_part(op: tf.Operation) -> bool:
    """Returns whether an output of an operation was noted, or a tensor in a function, branch or loop that it runs."""
    noted = _noted_in(op.graph)
    if any((op, number) in noted for number in range(len(op.outputs))):
        return True
    front, seen = ancestry.graphs_of_results(op), set()
    while front:
        graph = front.pop()
        if id(graph) in seen:
            continue
        seen.add(id(graph))
        if _noted_in(graph):
            return True
        front.extend(called for inner in graph.get_operations() for called in ancestry.graphs_of_results(inner))
    return False


def _has_graph(tensor: Any) -> bool:
    return hasattr(tensor, "graph")


def _noted_in(graph: tf.Graph) -> set[tuple[tf.Operation, int]]:
    if not hasattr(graph, _NOTED):
        setattr(graph, _NOTED, set())
    return getattr(graph, _NOTED)


def _stems_from_part(tensor: tf.Tensor, are_indices: bool = False) -> bool:
    # With each tensor, the operations that call the function in which it is; the innermost one is the last.
    front: list[tuple[Any, tuple[tf.Operation, ...]]] = [(tensor, ())]
    seen = set()
    while front:
        tensor, calls = front.pop()
        if not _has_graph(tensor):
            if getattr(tensor, _NOTED, False):
                return True
            continue
        output = (tensor.op, tensor.value_index)
        if (output, calls) in seen:
            continue
        if output in _noted_in(tensor.graph) or (are_indices and SHARD_ROWS in tensor.op.node_def.attr):
            return True
        seen.add((output, calls))
        front.extend(_sources(tensor, calls, are_indices))
    return False


def _sources(
    tensor: tf.Tensor, calls: tuple[tf.Operation, ...], any_shape: bool
) -> Iterator[tuple[tf.Tensor, tuple[tf.Operation, ...]]]:
    """Yields the tensors from which a tensor is computed: only tensors of its shape, unless `any_shape`."""
    op = tensor.op
    if op.type.startswith(_OWN_OPERATIONS):
        return
    if op.type == "Placeholder":
        yield from _given(op, calls)
    elif graphs := ancestry.graphs_of_results(op):
        yield from ((graph.outputs[tensor.value_index], (*calls, op)) for graph in graphs)
        if op.type in _LOOPS:  # which may have no iteration
            yield op.inputs[tensor.value_index], calls
    else:
        follows_all = any_shape or op.type == "ReadVariableOp"
        yield from ((source, calls) for source in op.inputs if follows_all or _may_have_one_shape(tensor, source))


def _given(
    placeholder: tf.Operation, calls: tuple[tf.Operation, ...]
) -> Iterator[tuple[tf.Tensor, tuple[tf.Operation, ...]]]:
    """Yields what a placeholder stands for, if it is an input of a function, a branch or a loop's body."""
    if not calls:
        if (outer := ancestry.captured(placeholder)) is not None:
            yield outer, ()
        return
    call, inputs = calls[-1], placeholder.graph.inputs
    number = next((n for n, given in enumerate(inputs) if given.op is placeholder), None)
    if number is None:
        return
    # A conditional's first input is the condition.
    yield call.inputs[len(call.inputs) - len(inputs) + number], calls[:-1]
    if call.type in _LOOPS:  # an iteration gets what the one before has returned
        yield placeholder.graph.outputs[number], calls


def _may_have_one_shape(tensor: tf.Tensor, source: tf.Tensor) -> bool:
    """Returns whether two shapes may be the same. An unknown rank would be known for a step that keeps it."""
    ranks_are_known = tensor.shape.rank is not None and source.shape.rank is not None
    return ranks_are_known and tensor.shape.is_compatible_with(source.shape)
