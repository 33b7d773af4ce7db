"""From an optimizer, a variable and a sparse gradient to the operation that applies it."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util, resource_variable_ops

from lockstep._src.engine import library
from lockstep._src.tables.updates import tensorflow1_rules
from lockstep._src.tables.updates.owners import slot_names
from lockstep._src.tables.updates.rules import Rule

# The core's row numbers have 32 bits, and one of them means "none".
_MOST_ROWS = 2**32 - 2


def rule_of(optimizer: Any) -> Rule | None:
    """The rule by which an optimizer applies sparse gradients; None where none is known to be the same.

    Args:
      optimizer: of `tf.compat.v1.train` or of Keras 3.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return tensorflow1_rules.rule_of(optimizer)
    keras = sys.modules.get("keras.src.optimizers.base_optimizer")
    if keras is not None and isinstance(optimizer, keras.BaseOptimizer):
        # It imports Keras 3, which not every TensorFlow has.
        from lockstep._src.tables.updates import keras3

        return keras3.rule_of(optimizer)
    return None


def apply_sparse(optimizer: Any, variable: Any, values: tf.Tensor, indices: tf.Tensor) -> Any:
    """Applies a sparse gradient of a variable in one operation, as the optimizer would apply it.

    For optimizers of `tf.compat.v1.train` it has to be called where they call their own methods for that: slots are
    made, and hyperparameters prepared.

    Args:
      optimizer: of `tf.compat.v1.train` or of Keras 3.
      variable: float32 [R, ...], or a dynamic one: of these, slots are the table's own, made at the first update by the
        rule's initial values, and named "<optimizer's name>/<slot>" (`owners.py`).
      values: float32 [N, ...], gradients of rows. Those of one row are summed first.
      indices: [N] int32 or int64, the rows; of a sharded table, those of the shard; of a dynamic one, int64 row
        numbers, where -1 drops a gradient. Running it raises
        InvalidArgumentError for one out of range, and FailedPreconditionError for a variable without a value.

    Returns:
      The operation, or the variable under eager execution; None where the optimizer's rule is not known, or variable or
      gradient are of a kind that fused updates don't take: then nothing has been done.
    """
    rule = rule_of(optimizer)
    return None if rule is None else apply_rule(rule, variable, values, indices)


def apply_rule(rule: Rule, variable: Any, values: tf.Tensor, indices: tf.Tensor) -> Any:
    """`apply_sparse` by a rule."""
    if values.dtype != tf.float32 or indices.dtype not in (tf.int32, tf.int64):
        return None
    # XLA cannot compile it.
    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
        return None
    dynamic = getattr(variable, "is_dynamic", False)
    slots = [] if dynamic else [rule.slot_of(variable, slot.name) for slot in rule.slots]
    if not dynamic and not all(map(is_fit, [variable, *slots])):
        return None
    names = [slot.name for slot in rule.slots]
    applied = library.ops.lockstep_sparse_update(
        [variable.handle],
        [slot.handle for slot in slots],
        [tf.cast(h, tf.float32) for h in rule.hyperparameters()],
        [values],
        [indices],
        names=[getattr(variable, "logical_name", variable.name.split(":")[0])],
        rules=[rule.name],
        all_rows=[rule.all_rows],
        dynamic=[dynamic],
        slot_names=slot_names(rule.optimizer, variable, names) if dynamic else [],
        slot_initials=[slot.initial for slot in rule.slots] if dynamic else [],
    )
    return variable if tf.executing_eagerly() else applied


def is_fit(variable: Any) -> bool:
    """Whether a variable is one that the operation can change: float32, in memory of the host, few enough rows."""
    return (
        isinstance(variable, resource_variable_ops.BaseResourceVariable)
        and variable.dtype.base_dtype == tf.float32
        and "GPU" not in (variable.handle.device or "").upper()
        and bool(variable.shape.rank)
        and (tf.compat.dimension_value(variable.shape[0]) or 0) <= _MOST_ROWS
    )
