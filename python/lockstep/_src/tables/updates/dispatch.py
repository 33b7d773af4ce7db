"""The choice of a rule for an optimizer, among its library's rules, and the application of sparse gradients by it.

The rules of TensorFlow 1 are in `tensorflow1_rules.py`, and Keras 3's in `keras_rules.py`. Optimizers of Keras 2 are
not known here: `keras2.py` replaces their methods, and chooses the rules itself.
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from lockstep._src.tables.updates import tensorflow1_rules
from lockstep._src.tables.updates.apply import apply_rule
from lockstep._src.tables.updates.rules import Rule


def rule_of(optimizer: Any) -> Rule | None:
    """Returns the rule by which an optimizer applies sparse gradients; None if no equivalent rule is known.

    Args:
      optimizer: an optimizer of `tf.compat.v1.train` or of Keras 3.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return tensorflow1_rules.rule_of(optimizer)
    keras = sys.modules.get("keras.src.optimizers.base_optimizer")
    if keras is not None and isinstance(optimizer, keras.BaseOptimizer):
        # This imports Keras 3, which some versions of TensorFlow do not have.
        from lockstep._src.tables.updates import keras3

        return keras3.rule_of(optimizer)
    return None


def apply_sparse(optimizer: Any, variable: Any, values: tf.Tensor, indices: tf.Tensor) -> Any:
    """Applies a sparse gradient of a variable in one operation, with the same result as the optimizer.

    For optimizers of `tf.compat.v1.train`, call it where they call their own methods for this: after they have created
    slots and prepared hyperparameters.

    Args:
      optimizer: an optimizer of `tf.compat.v1.train` or of Keras 3.
      variable: float32 [R, ...], or a dynamic table. Slots of a dynamic table belong to the table. They are created at
        the first update with the rule's initial values, and named "<optimizer's name>/<slot>" (`owners.py`).
      values: float32 [N, ...], gradients of rows. Those of one row are summed first.
      indices: [N] int32 or int64, the rows. For a sharded table these are rows of the shard. For a dynamic table they
        are int64 row numbers, where -1 drops a gradient. Running the operation raises InvalidArgumentError for an index
        out of range, and FailedPreconditionError for a variable without a value.

    Returns:
      The operation, or the variable under eager execution. None, without having done anything, if the optimizer's rule
      is not known, or if fused updates do not support the kind of the variable or gradient.
    """
    rule = rule_of(optimizer)
    return None if rule is None else apply_rule(rule, variable, values, indices)
