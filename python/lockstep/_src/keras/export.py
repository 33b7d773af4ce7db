"""SavedModels of Keras 3 models with dynamic or sharded tables: stock TensorFlow operations alone.

`model.export` traces the model's layers. While it does, a dynamic table is three things of TensorFlow: its admitted
keys, [K], the matrix of their rows with one more for all other keys, [K + 1, D], and a hash table from keys to places
in it, which is filled from the first when the SavedModel is loaded. A key that is not there reads the table's default
row, as it does in evaluation (tables/dynamic/modes.py). Sharded tables are whole.

Imports Keras: only where TensorFlow runs eagerly, and its Keras is Keras 3.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import backend
from tensorflow.python.ops import lookup_ops

from lockstep._src.collectives import agreement, ordered
from lockstep._src.engine.context import context
from lockstep._src.keras.dynamic_embedding import DynamicEmbedding
from lockstep._src.keras.hooks.variables import sharded_variables
from lockstep._src.tables.dynamic.variable import DynamicVariable


def export(model: keras.Model, filepath: str | os.PathLike[str], **kwargs: Any) -> None:
    """Writes a SavedModel for inference as `model.export` does, of a model that may have tables of this library.

    The SavedModel gives what `model.predict` gives. A key without a row reads the default row of its table in both:
    `default_value_no_permission` of the table's options (0 by default), or the constant that all rows begin with.

    In a job all workers call it, and worker 0 writes: a table's rows come together in its memory.

    Args:
      model: of Keras 3, built.
      filepath: directory of the SavedModel.
      **kwargs: of Keras' `Model.export`, such as `input_signature`; `format` has to be 'tf_saved_model'.

    Raises:
      ValueError: another format.
      RuntimeError: worker 0 failed, on the others; what Keras raises, on worker 0.
    """
    if kwargs.get("format", "tf_saved_model") != "tf_saved_model":
        raise ValueError(f"export: format is {kwargs['format']!r}, wanted 'tf_saved_model'")
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, DynamicEmbedding) and layer.built]
    tables = [(layer, *_whole_rows(layer.table)) for layer in layers]
    weights = [(variable, variable.numpy()) for variable in sharded_variables(model.variables)]

    def write() -> None:
        with contextlib.ExitStack() as stack:
            # Worker 0 is alone here: what is made is its own.
            stack.enter_context(context.scope(mode="infer", sharding=False))
            stack.enter_context(context.detached())
            for table in tables:
                stack.enter_context(_as_matrix(*table))
            for weight in weights:
                stack.enter_context(_as_variable(*weight))
            model.export(os.fspath(filepath), **kwargs)

    agreement.on_chief(write, "export", "model_exported")


class _Initializer(lookup_ops.TableInitializerBase):
    """Fills a table with places by key, read from a variable: constants in a graph have to be small."""

    def __init__(self, keys: tf.Variable) -> None:
        super().__init__(keys.dtype, tf.int64)
        self._keys = self._track_trackable(keys, "keys")

    def initialize(self, table: Any) -> tf.Operation:
        keys = self._keys.read_value()
        with tf.name_scope("fill_places"):
            return tf.raw_ops.InitializeTableV2(
                table_handle=table.resource_handle, keys=keys, values=tf.range(tf.size(keys), dtype=tf.int64)
            )


class _Places(tf.Module):
    """Places of rows by key; that behind the last one for other keys."""

    def __init__(self, keys: np.ndarray) -> None:
        super().__init__()
        self._count = len(keys)
        if self._count:  # TensorFlow fills no table with nothing
            keys = tf.Variable(keys, trainable=False, dtype=tf.string if keys.dtype == object else tf.int64)
            self._table = lookup_ops.StaticHashTable(_Initializer(keys), self._count)

    def of(self, keys: tf.Tensor) -> tf.Tensor:
        """Int64, of the keys' shape."""
        if not self._count:
            return tf.zeros(tf.shape(keys), tf.int64)
        return self._table.lookup(keys if keys.dtype == tf.string else tf.cast(keys, tf.int64))


@contextlib.contextmanager
def _as_matrix(layer: DynamicEmbedding, keys: np.ndarray, rows: np.ndarray) -> Iterator[None]:
    """Inside, a layer reads these rows."""
    rows = np.concatenate([rows, np.full([1, layer.output_dim], layer.table.default_value, rows.dtype)])
    matrix = tf.Variable(rows, trainable=False, name="embeddings")
    weight = layer._weight
    table = weight._value
    weight._value, layer.places = matrix, _Places(keys)
    try:
        yield
    finally:
        weight._value, layer.places = table, None


@contextlib.contextmanager
def _as_variable(variable: Any, whole: np.ndarray) -> Iterator[None]:
    """Inside, a sharded weight is one of Keras' own."""
    own = (variable.__class__, variable._value, variable._shape)
    variable.__class__ = backend.Variable
    variable._value, variable._shape = tf.Variable(whole, trainable=False, name=variable.name), whole.shape
    try:
        yield
    finally:
        variable.__class__, variable._value, variable._shape = own


def _whole_rows(table: DynamicVariable) -> tuple[np.ndarray, np.ndarray]:
    """Admitted keys of all workers and their rows."""
    keys, rows, *_ = table.export()
    if context.world_size == 1:
        return keys.numpy(), rows.numpy()
    name = f"exported/{table.logical_name}"
    rows = ordered.allgather(tf.cast(rows, tf.float32), name=f"{name}/rows").numpy()
    if keys.dtype != tf.string:
        return ordered.allgather(keys, name=f"{name}/keys").numpy(), rows
    mine = tf.constant(np.frombuffer(b"".join(keys.numpy()), np.uint8))
    ends = np.cumsum(ordered.allgather(tf.strings.length(keys), name=f"{name}/lengths").numpy(), dtype=np.int64)
    text = ordered.allgather(mine, name=f"{name}/bytes").numpy().tobytes()
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    return np.array([text[a:b] for a, b in zip(starts, ends, strict=True)], object), rows
