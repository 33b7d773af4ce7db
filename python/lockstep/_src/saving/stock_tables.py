"""Dynamic tables in exported models: a hash table and a matrix of rows, which stock TensorFlow serves.

The two variables of a table:

| variable of the SavedModel | holds |
| --- | --- |
| `<table>-keys` | the admitted keys, [K]: int64, or strings |
| `<table>-values` | their rows, [K, D] float32 |

Both are byte-for-byte copies of the checkpoint's tensors, and neither is loaded into this process's memory. When a
server loads the SavedModel, it fills a `tf.lookup.StaticHashTable` from keys to row numbers with `<table>-keys`.

In an updatable SavedModel, a mutable hash table from keys to rows takes the place of the variables (`RowTable`). The
SavedModel has the same two tensors.

A key without a row reads the table's default row, as in evaluation (tables/dynamic/modes.py).
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.saving.row_table import RowTable
from lockstep._src.saving.table_saveables import misfit
from lockstep._src.tables.dynamic import initial_rows, table_options
from lockstep._src.tables.dynamic import variable as dynamic


class Tensors(Protocol):
    """The shapes and types of a checkpoint's tensors, by name."""

    path: str
    shapes: dict[str, list[int]]
    dtypes: dict[str, tf.DType]


class _Lookups:
    """Lookups in a table that consists of two variables: its keys, and their rows in the same order."""

    def __init__(self, name: str, keys: tf.Variable, rows: tf.Variable, default_value: float) -> None:
        self._count, dim = rows.shape.as_list()
        self._rows, self._default = rows, tf.fill([dim], tf.constant(default_value, tf.float32))
        if self._count:  # TensorFlow cannot initialize a hash table with zero keys
            with tf.name_scope(f"{name}/"):
                places = tf.lookup.KeyValueTensorInitializer(keys.read_value(), tf.range(self._count, dtype=tf.int64))
                self._places = tf.lookup.StaticHashTable(places, -1, name="Places")

    def rows(self, keys: tf.Tensor, training: bool) -> tf.Tensor:
        """Returns the rows of keys of any shape, [keys..., D]."""
        del training
        if self._count == 0:
            return tf.broadcast_to(self._default, tf.concat([tf.shape(keys), tf.shape(self._default)], 0))
        places = self._places.lookup(keys if keys.dtype == tf.string else tf.cast(keys, tf.int64))
        rows = tf.gather(self._rows, tf.maximum(places, 0))
        return tf.where(tf.expand_dims(places >= 0, -1), rows, self._default)


class StockTable(dynamic.DynamicVariable):
    """A dynamic table of a checkpoint in a graph of stock operations. It can only be read.

    Args:
      checkpoint: the checkpoint with the table.
      name: the table's name.
      dim: the row size D.
      key_dtype: the type of keys.
      dtype: the type of the rows that lookups return.
      initializer: the initial values of rows; they determine the default row.
      trainable: not used.
      collections: not used; the two variables are added to `GLOBAL_VARIABLES`.
      option: the table's options.
      updatable: keeps the rows in a mutable hash table, `mutable`, so that a running server can change them.

    Raises:
      ValueError: the checkpoint does not have the table, or has it with other keys or row sizes.
    """

    fuses_lookups = False
    # Its rows come from the export's checkpoint, regardless of the model's initial values.
    is_initialized_here = False

    def __init__(
        self,
        checkpoint: Tensors,
        name: str,
        dim: int,
        key_dtype: Any = tf.int64,
        dtype: Any = tf.float32,
        initializer: Any = None,
        trainable: bool = True,
        collections: Any = None,
        option: table_options.EmbeddingVariableOption | None = None,
        updatable: bool = False,
    ) -> None:
        del trainable, collections
        self._dim, self._option = dim, option or table_options.EmbeddingVariableOption()
        self._key_dtype = tf.as_dtype(key_dtype)
        self._attributes = table_options.attributes(self._option, 1)
        stored_keys = tf.string if self._key_dtype == tf.string else tf.int64
        self._count = _count_of(checkpoint, name, dim, stored_keys)
        initializer = initializer if initializer is not None else self._option.init_option.initializer
        start = initial_rows.initial_of(initializer, dim, name, 1)
        self._attributes["default_value"] = initial_rows.default_value(start, self._attributes)
        self._lookups: Any
        self.mutable: RowTable | None = None
        if updatable:
            self._lookups = self.mutable = RowTable(name, stored_keys, dim, self.default_value)
            handle, initializer_op = self.mutable.handle, tf.no_op()
        else:
            keys = _variable(f"{name}-keys", [self._count], stored_keys)
            rows = _variable(f"{name}-values", [self._count, dim], tf.float32)
            self._lookups = _Lookups(name, keys, rows, self.default_value)
            handle, initializer_op = rows.handle, rows.initializer
        # Skips DynamicVariable's __init__ and calls the one of TensorFlow's class, with the resource of the rows.
        super(dynamic.DynamicVariable, self).__init__(
            trainable=False,
            shape=tf.TensorShape([None, dim]),
            dtype=tf.as_dtype(dtype),
            handle=handle,
            synchronization=tf.VariableSynchronization.NONE,
            aggregation=tf.VariableAggregation.NONE,
            unique_id=name,
            handle_name=name,
            initializer_op=initializer_op,
            in_graph_mode=True,
        )
        ops.add_to_collection(dynamic.TABLES, self)

    def total_count(self) -> tf.Tensor:
        """Returns the number of admitted keys, an int64 scalar."""
        return tf.constant(self._count, tf.int64) if self.mutable is None else self.mutable.count()


def _refusing(method: str) -> Any:
    def refuse(self: StockTable, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(method, "an exported model looks keys up and cannot do anything else")

    refuse.__doc__ = "Raises NotImplementedError."
    return refuse


for _method in (
    "candidate_count",
    "memory_bytes",
    "export",
    "export_slots",
    "get_frequency",
    "get_version",
    "get_seconds",
    "find",
    "contains",
    "insert",
    "evict",
):
    setattr(StockTable, _method, _refusing(_method))
for _method in ("remove", "end_step"):
    setattr(StockTable, _method, _refusing(_method))


def _count_of(checkpoint: Tensors, name: str, dim: int, key_dtype: tf.DType) -> int:
    problem = misfit(checkpoint.shapes, checkpoint.dtypes, name, dim, key_dtype)
    if problem:
        raise ValueError(
            f"export: checkpoint {checkpoint.path!r} does not fit the model: dynamic table {name} {problem}"
        )
    return checkpoint.shapes[f"{name}-keys"][0]


def _variable(name: str, shape: list[int], dtype: tf.DType) -> tf.Variable:
    """Creates a variable of exactly this name. Its initial value is never computed, because it is always restored."""
    with tf.compat.v1.name_scope(None):
        return resource_variable_ops.ResourceVariable(
            initial_value=lambda: tf.fill(shape, tf.constant("" if dtype == tf.string else 0, dtype)),
            trainable=False,
            dtype=dtype,
            name=name,
        )
