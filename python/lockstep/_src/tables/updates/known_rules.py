"""The rule of any known optimizer, and sparse gradients that are applied by it."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from lockstep._src.tables.updates import tensorflow1_rules
from lockstep._src.tables.updates.apply import apply_rule
from lockstep._src.tables.updates.rules import Rule


def rule_of(optimizer: Any) -> Rule | None:
    """Returns the rule by which an optimizer applies sparse gradients; None where none is known to be the same.

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
