"""Reads of the rows that a table has on this worker."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils, ops
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.engine import host_memory, library

_READ = "LockstepReadRows"
# A `tf.function` runs reads in any order between two writes.
auto_control_deps_utils.register_read_only_resource_op(_READ)
# The operation has the inputs of TensorFlow's gather, and so the gradient: tf.IndexedSlices.
tf.RegisterGradient(_READ)(ops.gradient_registry.lookup("ResourceGather"))


def read_rows(variable: tf.Variable, numbers: tf.Tensor) -> tf.Tensor:
    """Returns rows of a variable by number, as `variable.sparse_read` of TensorFlow's class does.

    TensorFlow's own operation copies the whole variable if a checkpoint of it is being saved.

    Args:
      variable: [L, D...], a resource variable.
      numbers: int32 or int64 of any shape, each in [0, L). Otherwise running it raises InvalidArgumentError.

    Returns:
      [numbers..., D...]. Its gradient with respect to the variable is `tf.IndexedSlices`.
    """
    if not _is_plain_memory_of_host(variable):
        return resource_variable_ops.BaseResourceVariable.sparse_read(variable, numbers)
    resource_variable_ops.variable_accessed(variable)
    return library.ops.lockstep_read_rows(variable.handle, numbers, dtype=variable.dtype)


def _is_plain_memory_of_host(variable: tf.Variable) -> bool:
    dtype = variable.dtype.base_dtype
    return (dtype.is_numeric or dtype.is_bool) and host_memory.has_host_memory(variable)
