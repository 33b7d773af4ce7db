"""The operation that applies a sparse gradient of a variable by a rule."""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util, resource_variable_ops

from lockstep._src.collectives.slices import before_sum
from lockstep._src.engine import host_memory, library
from lockstep._src.engine.thread_value import ThreadValue
from lockstep._src.tables.updates.owners import slot_names
from lockstep._src.tables.updates.rules import Rule

_touched_only = ThreadValue(False)


def of_touched_rows() -> contextlib.AbstractContextManager[None]:
    """Makes updates of dynamic tables inside the block skip rows that have no gradient, as lazy Adam does."""
    return _touched_only.holding(True)


# The core's row numbers have 32 bits, and one number means "none".
_MOST_ROWS = 2**32 - 2


def apply_rule(rule: Rule, variable: Any, values: tf.Tensor, indices: tf.Tensor) -> Any:
    """Applies a sparse gradient by a rule; takes and returns the same as `dispatch.apply_sparse`."""
    if values.dtype != tf.float32 or indices.dtype not in (tf.int32, tf.int64):
        return None
    # XLA cannot compile the operation.
    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
        return None
    dynamic = getattr(variable, "is_dynamic", False)
    slots = [] if dynamic else [rule.slot_of(variable, slot.name) for slot in rule.slots]
    if not dynamic and not all(map(is_fit, [variable, *slots])):
        return None
    names = [slot.name for slot in rule.slots]
    # The operation sums slices of one row itself.
    values, indices = before_sum(values, indices) or (values, indices)
    hyperparameters = rule.hyperparameters()
    applied = library.ops.lockstep_sparse_update(
        [variable.handle],
        [slot.handle for slot in slots],
        [tf.cast(value, tf.float32) for value in hyperparameters.values()],
        [values],
        [indices],
        names=[getattr(variable, "logical_name", variable.name.split(":")[0])],
        rules=[rule.name],
        hyperparameter_names=list(hyperparameters),
        all_rows=[rule.all_rows and not (dynamic and _touched_only.value)],
        dynamic=[dynamic],
        slot_names=slot_names(rule.optimizer, variable, names) if dynamic else [],
        slot_initials=[slot.initial for slot in rule.slots] if dynamic else [],
    )
    return variable if tf.executing_eagerly() else applied


def is_fit(variable: Any) -> bool:
    """Returns whether the operation can change a variable: float32, in memory of the host, and few enough rows."""
    return (
        isinstance(variable, resource_variable_ops.BaseResourceVariable)
        and variable.dtype.base_dtype == tf.float32
        and host_memory.has_host_memory(variable)
        and bool(variable.shape.rank)
        and (tf.compat.dimension_value(variable.shape[0]) or 0) <= _MOST_ROWS
    )
