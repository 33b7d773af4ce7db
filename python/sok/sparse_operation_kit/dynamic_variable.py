"""Variables that grow with their keys."""

from typing import Any

import tensorflow as tf

from lockstep import _assembly  # noqa: F401  savers of TensorFlow 1 that know of dynamic tables
from lockstep._src.compat.sok import rows
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable

__all__ = ["DynamicVariable", "assign", "export"]


def export(var: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the keys and rows of this rank.

    Args:
      var: sok.DynamicVariable or sok.Variable.

    Returns:
      (indices, values): [L] keys, ascending, and [L, D] rows; for a sok.Variable the ids of the rank's rows.

    Raises:
      TypeError: another variable.
    """
    return rows.export(var)


def assign(var: Any, indices: Any, values: Any) -> Any:
    """Sets rows of this rank; new keys of a dynamic variable are added. Slots of optimizers stay.

    A rank looks keys up where they belong: key k on rank k mod the number of ranks, or on a localized table's rank.
    So keys of other ranks, which a dynamic variable accepts, are never found by `lookup_sparse`.

    Args:
      var: sok.DynamicVariable or sok.Variable.
      indices: [N] integers; of several rows for one key the last one counts.
      values: [N, D], which are cast to the variable's type.

    Returns:
      The variable; in a graph, the operation.

    Raises:
      TypeError: another variable, or indices of another type.
      tf.errors.InvalidArgumentError: this rank does not have a row of a sok.Variable.
    """
    return rows.assign(var, indices, values)
