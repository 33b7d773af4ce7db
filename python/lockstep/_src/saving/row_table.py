"""A dynamic table in an updatable SavedModel: a hash table from keys to rows that a running server can change.

It is stock TensorFlow's `MutableHashTableOfTensors`. The SavedModel's variables hold its content as the two tensors
`<table>-keys` [K] and `<table>-values` [K, D] float32. A server that loads the SavedModel reads them and imports them,
so after loading each row is in memory once.
"""

from __future__ import annotations

import uuid
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.training.saving import saveable_object

_raw = tf.raw_ops


class RowTable:
    """A mutable hash table from keys to rows.

    Args:
      name: the table's name in the checkpoint.
      key_dtype: the type of the keys: int64 or string.
      dim: the row size D.
      default_value: each element of the row that unknown keys read.
    """

    def __init__(self, name: str, key_dtype: tf.DType, dim: int, default_value: float) -> None:
        self.name, self.key_dtype, self.dim = name, key_dtype, dim
        with tf.name_scope(f"{name}/"), ops.device("CPU:0"):
            self._default = tf.fill([dim], tf.constant(default_value, tf.float32))
            # Operations find the table by its shared name. Two exports in one process must not share it.
            self.handle = _raw.MutableHashTableOfTensorsV2(
                key_dtype=key_dtype,
                value_dtype=tf.float32,
                value_shape=[dim],
                shared_name=f"lockstep_{uuid.uuid4()}",
                name="Rows",
            )
        ops.add_to_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS, RowTableSaveable(self))

    def rows(self, keys: tf.Tensor, training: bool) -> tf.Tensor:
        """Returns the rows of keys of any shape, [keys..., D]; unknown keys read the default row."""
        del training
        keys = keys if keys.dtype == tf.string else tf.cast(keys, tf.int64)
        rows = _raw.LookupTableFindV2(table_handle=self.handle, keys=keys, default_value=self._default)
        rows.set_shape(keys.shape.concatenate([self.dim]))
        return rows

    def count(self) -> tf.Tensor:
        """Returns the number of keys, an int64 scalar."""
        return _raw.LookupTableSizeV2(table_handle=self.handle)

    def update(self, removed: tf.Tensor, keys: tf.Tensor, values: tf.Tensor) -> tf.Operation:
        """Removes keys [G], and then sets the rows, [C, D], of keys [C]. Removed keys need not be in the table."""
        remove = _raw.LookupTableRemoveV2(table_handle=self.handle, keys=removed)
        with tf.control_dependencies([remove]):
            return _raw.LookupTableInsertV2(table_handle=self.handle, keys=keys, values=values)


class RowTableSaveable(saveable_object.SaveableObject):
    """The table's content under the names that dynamic tables have in checkpoints."""

    def __init__(self, table: RowTable) -> None:
        self._handle = table.handle
        content = _raw.LookupTableExportV2(table_handle=self._handle, Tkeys=table.key_dtype, Tvalues=tf.float32)
        specs = [
            saveable_object.SaveSpec(content.keys, "", f"{table.name}-keys"),
            saveable_object.SaveSpec(content.values, "", f"{table.name}-values"),
        ]
        super().__init__(self._handle, specs, table.name)

    def restore(self, restored_tensors: list[tf.Tensor], restored_shapes: list[Any] | None) -> tf.Operation:
        """Replaces the table's content."""
        del restored_shapes
        keys, values = restored_tensors
        with ops.colocate_with(self._handle):
            return _raw.LookupTableImportV2(table_handle=self._handle, keys=keys, values=values)
