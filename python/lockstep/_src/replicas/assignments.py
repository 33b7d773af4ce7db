"""Makes a program's own assignments to replicated variables the same on all workers.

Examples are a moving average, a counter, or a step of gradient descent without an optimizer. Each worker computes the
assigned value from its own part of the batch. Therefore the value is exchanged before it is assigned, and the variable
stays the same on all workers. As in TensorFlow's own strategies, the variable's `aggregation` selects the reduction:

- MEAN, and NONE for floating-point types: the mean over workers, weighted by their rows, like gradients.
- SUM, and NONE if the value is added to or subtracted from another type: the sum, so that each row counts once.
- ONLY_FIRST_REPLICA, and NONE if a value of another type is assigned: the value of worker 0.

A part of a table's gradient is assigned unchanged, and the variable is known to hold a part from then on. Gradients may
be summed over several steps so.

A value that was already exchanged, such as a gradient or a moment of the batch, is assigned unchanged. So is a value
that does not depend on a batch of an iterator of the scope. Variables that are local to a worker, and sharded tables,
are not affected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep._src.graph import alike, parts, row_weights
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables import sharded

_Aggregation = tf.VariableAggregation


def intercept_assignments(interception: Interception) -> None:
    """Makes assignments to replicated variables the same on all workers while the interception lasts."""
    for hook in symbols.ASSIGNMENTS:
        interception.replace(hook, functools.partial(_wrap, hook.name))


def _wrap(name: str, assign: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(assign)
    def wrapped(variable: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        return assign(variable, _exchanged(variable, value, adds=name != "assign"), *args, **kwargs)

    return wrapped


def _exchanged(variable: Any, value: Any, adds: bool) -> Any:
    """Returns the value to assign; it is exchanged if this worker's value may differ from the others'."""
    if context.world_size == 1 or not isinstance(value, tf.Tensor):
        return value
    if parts.is_part(value):
        # Each worker keeps its part, of a table's gradient for instance.
        parts.note_variable(variable)
        return value
    if context.options.mode != "train" or tf.executing_eagerly():
        return value
    if not _is_held_by_all(variable):
        return value
    if row_weights.of([value]) is None or not alike.differs(value):
        return value
    how = variable.aggregation
    if how == _Aggregation.NONE:
        other = _Aggregation.SUM if adds else _Aggregation.ONLY_FIRST_REPLICA
        how = _Aggregation.MEAN if value.dtype.is_floating else other
    with tf.name_scope(f"{variable.op.name}_of_all/"):
        if how == _Aggregation.MEAN:
            exchanged = ordered.allreduce(row_weights.weighted(value), op="mean", name="mean")
        elif how == _Aggregation.SUM:
            exchanged = ordered.allreduce(value, op="sum", name="sum")
        else:
            exchanged = ordered.broadcast(value, root=0, name="first")
    alike.note(exchanged)
    return exchanged


def _is_held_by_all(variable: Any) -> bool:
    replicated = any(variable is one for one in tf.compat.v1.global_variables())
    return replicated and not sharded.is_sharded(variable)
