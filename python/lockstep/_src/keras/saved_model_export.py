"""SavedModels of Keras 3 models with dynamic or sharded tables, which contain only stock TensorFlow operations.

`model.export` traces the model's layers. During this, a dynamic table is represented by three objects of TensorFlow.
They are its admitted keys [K], the matrix of their rows with one more row for all other keys [K + 1, D], and a hash
table from keys to row numbers. The hash table is filled from the keys when the SavedModel is loaded. A key that is not
there reads the table's default row, as it does in evaluation (tables/dynamic/modes.py). Sharded tables are exported as
a whole.

This module imports Keras. It needs eager execution of TensorFlow, and Keras 3.
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
from lockstep._src.engine import apart
from lockstep._src.engine.context import context
from lockstep._src.keras import composite_inputs
from lockstep._src.keras.dynamic_embedding import DynamicEmbedding, weight_of
from lockstep._src.keras.hooks import called_alone
from lockstep._src.keras.hooks.variables import sharded_variables
from lockstep._src.tables.dynamic.variable import DynamicVariable

_ADVICE = (
    "all ranks send their rows of tables, and rank 0 writes the files. Call export() on all ranks, with the same path"
)


def export(model: keras.Model, filepath: str | os.PathLike[str], **kwargs: Any) -> None:
    """Writes a SavedModel for inference like `model.export`, also of a model with tables of this library.

    The SavedModel returns the same as `model.predict`. In both, a key without a row reads the default row of its table:
    `default_value_no_permission` of the table's options (0 by default), or the constant with which all rows begin.

    Inputs that were declared `ragged` or `sparse` stay so in the SavedModel's function `serve`. Its signature
    `serving_default` takes their components by name. Inputs of a subclass are not declared; its
    `input_signature` has `tf.RaggedTensorSpec` and `tf.SparseTensorSpec` for them.

    In a job all workers call this, and worker 0 writes the files. Its memory must hold the whole tables.

    Args:
      model: a built model of Keras 3.
      filepath: the directory of the SavedModel.
      **kwargs: arguments of Keras' `Model.export`, such as `input_signature`; `format` must be 'tf_saved_model'.

    Raises:
      ValueError: the format is another one. Or the model's inputs are not declared, and a `DynamicEmbedding` has had
        ragged or sparse keys only: in the dense ones of Keras' signature, padding would count.
      TypeError: an argument is not supported for a model with ragged or sparse inputs.
      RuntimeError: on the other workers, if worker 0 failed. Worker 0 raises Keras' error. Or other workers have not
        made this call.
    """
    if kwargs.get("format", "tf_saved_model") != "tf_saved_model":
        raise ValueError(f"export: format is {kwargs['format']!r}, wanted 'tf_saved_model'")
    apart.warn(
        "lockstep.keras.export is called",
        "Worker 0 writes its own weights; each worker has trained its weights by itself",
    )
    with called_alone.refused("export()", _ADVICE):
        _export(model, filepath, kwargs)


def _export(model: keras.Model, filepath: str | os.PathLike[str], options: dict[str, Any]) -> None:
    signature = _composite_signature(model, options)
    refused: list[str] = []
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, DynamicEmbedding) and layer.built]
    tables = [(layer, *_whole_rows(layer.table)) for layer in layers]
    weights = [(variable, variable.numpy()) for variable in sharded_variables(model.variables)]

    @contextlib.contextmanager
    def checking() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for layer in layers if options.get("input_signature") is None else ():
                stack.enter_context(_refusing_padding(layer, refused))
            yield

    def write() -> None:
        with contextlib.ExitStack() as stack:
            # Only worker 0 runs this, so its variables must not be shared with other workers.
            stack.enter_context(context.scope(mode="infer", sharding=False))
            stack.enter_context(context.detached())
            for table in tables:
                stack.enter_context(_as_matrix(*table))
            for weight in weights:
                stack.enter_context(_as_variable(*weight))
            try:
                if signature is None:
                    with checking():
                        model.export(os.fspath(filepath), **options)
                else:
                    verbose = options.get("verbose") is not False
                    composite_inputs.export(model, filepath, signature, checking, verbose)
            except ValueError:
                if refused:
                    raise ValueError(refused[0]) from None  # Keras has put other sentences around it
                raise

    agreement.on_chief(write, "export", "model_exported")


def _composite_signature(model: keras.Model, options: dict[str, Any]) -> Any:
    """Returns the signature of a model with ragged or sparse inputs, or None; raises TypeError for other arguments."""
    signature = options.get("input_signature")
    if signature is None:
        signature = composite_inputs.signature_of(model)
    elif not composite_inputs.has_composites(signature):
        signature = None
    others = sorted(set(options) - {"format", "input_signature", "verbose"})
    if signature is not None and others:
        raise TypeError(
            f"export: got {', '.join(others)}; a model with ragged or sparse inputs takes only format, input_signature "
            "and verbose"
        )
    return signature


@contextlib.contextmanager
def _refusing_padding(layer: DynamicEmbedding, refused: list[str]) -> Iterator[None]:
    """Makes a layer refuse dense keys inside the block if it has only had other ones; `refused` gets the message."""
    had = layer.forms

    def check(form: str) -> None:
        if form != "dense" or not had or "dense" in had:
            return
        refused.append(
            f"export: layer {layer.name!r} was called with {' and '.join(sorted(had))} keys, but gets dense keys in "
            "the exported model, where padding counts as keys; pass input_signature with tf.RaggedTensorSpec or "
            "tf.SparseTensorSpec, such as [tf.RaggedTensorSpec([None, None], tf.int64)]"
        )
        raise ValueError(refused[-1])

    layer.check_form = check
    try:
        yield
    finally:
        layer.check_form = None


class _Initializer(lookup_ops.TableInitializerBase):
    """An initializer of a hash table: row numbers by key. A variable has the keys, because constants must be small."""

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
    """Row numbers by key; unknown keys have the number of the last row.

    Args:
      keys: [K].
      name: The name of the variable that has them.
    """

    def __init__(self, keys: np.ndarray, name: str) -> None:
        super().__init__()
        self._count = len(keys)
        if self._count:  # TensorFlow cannot fill an empty table
            dtype = tf.string if keys.dtype == object else tf.int64
            keys = tf.Variable(keys, trainable=False, dtype=dtype, name=name)
            self._table = lookup_ops.StaticHashTable(_Initializer(keys), self._count)

    def of(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns the keys' row numbers, int64 of the keys' shape."""
        if not self._count:
            return tf.zeros(tf.shape(keys), tf.int64)
        return self._table.lookup(keys if keys.dtype == tf.string else tf.cast(keys, tf.int64))


@contextlib.contextmanager
def _as_matrix(layer: DynamicEmbedding, keys: np.ndarray, rows: np.ndarray) -> Iterator[None]:
    """Makes a layer read these rows inside the block."""
    rows = np.concatenate([rows, np.full([1, layer.output_dim], layer.table.default_value, rows.dtype)])
    # `lockstep inspect` knows the table by these names.
    matrix = tf.Variable(rows, trainable=False, name=f"{layer.path}/embeddings")
    weight = weight_of(layer)
    table = weight._value
    weight._value, layer.places = matrix, _Places(keys, f"{layer.path}/keys")
    try:
        yield
    finally:
        weight._value, layer.places = table, None


@contextlib.contextmanager
def _as_variable(variable: Any, whole: np.ndarray) -> Iterator[None]:
    """Turns a sharded weight into an ordinary variable of Keras inside the block."""
    own = (variable.__class__, variable._value, variable._shape)
    variable.__class__ = backend.Variable
    variable._value, variable._shape = tf.Variable(whole, trainable=False, name=variable.path), whole.shape
    try:
        yield
    finally:
        variable.__class__, variable._value, variable._shape = own


def _whole_rows(table: DynamicVariable) -> tuple[np.ndarray, np.ndarray]:
    """Returns the admitted keys of all workers and their rows."""
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
