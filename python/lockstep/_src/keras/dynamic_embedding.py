"""A layer of Keras 3 over a dynamic table.

This module imports Keras. It needs eager execution of TensorFlow, and Keras 3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import backend

from lockstep._src.keras import option_configs
from lockstep._src.tables.dynamic import serialized
from lockstep._src.tables.dynamic.creation import make_table
from lockstep._src.tables.dynamic.modes import evaluating
from lockstep._src.tables.dynamic.table_options import EmbeddingVariableOption
from lockstep._src.tables.dynamic.variable import DynamicVariable, checked_key_type, wrong_keys
from lockstep._src.tables.pooling import lookup_pooled

_COMBINERS = ("sum", "mean", "sqrtn")
# The names of a table's two strings in Keras' files (tables/dynamic/serialized.py).
_FILES = ("table_index", "table_data")


class TableWeight(backend.Variable):
    """A dynamic table as a weight of a layer. Keras sees one row, because a shape without a length is not possible.

    It is not constructed: the layer changes the class of a `keras.Variable` to this one.
    """

    @property
    def table(self) -> DynamicVariable:
        """The dynamic table."""
        return self._value

    def assign(self, value: Any) -> None:
        """Raises NotImplementedError."""
        self._value.assign(value)

    def _deferred_initialize(self) -> None:
        """Does nothing: the table exists already when Keras creates variables of a traced model."""

    # Keras' own methods take a NotImplementedError as the sign of a variable that has only a value. These pass it on.
    def _serialize_to_tensors(self) -> Any:
        return self._value._serialize_to_tensors()

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
        return self._value._restore_from_tensors(restored_tensors)

    def numpy(self) -> None:
        """Raises NotImplementedError."""
        self._value.numpy()


@keras.saving.register_keras_serializable("lockstep")
class DynamicEmbedding(keras.layers.Layer):
    """Embeddings of keys without a vocabulary: `keras.layers.Embedding` without `input_dim`, for any int64 or string.

    The layer adds new keys when it is called for training: in `fit`, with `training=True`, or under a
    `tf.GradientTape`. It adds no keys in `evaluate`, in `predict`, with `trainable=False`, or in the SavedModel of
    `lockstep.keras.export`. There a key without a row reads the default row. Its elements are
    `default_value_no_permission` of the option's `InitializerOption`, 0 by default. A layer without a filter whose
    initializer is a constant uses that constant instead.

    `save`, `save_weights` and `tf.train.Checkpoint` save the table with its slots and counts. In jobs of several
    workers only `save` and `save_weights` do, and all workers must call them. `lockstep.keras.export(model, directory)`
    writes a SavedModel of the model. `keras.models.load_model` loads files of `save` in any program that imports
    `lockstep.keras`.

    Args:
      output_dim: the dimension D of the rows.
      embeddings_initializer: Keras' initializer or its name. A key's first row depends only on the seed, the
        table and the key.
      key_dtype: the type of the keys: int64, int32 or string.
      combiner: how the rows of an example are combined: 'sum', 'mean' or 'sqrtn'; None: they are not.
      option: filters, eviction and similar options (`EmbeddingVariableOption`), or their form in files of Keras.
      dtype: Keras' type or policy; the type of its variables is the rows' type (float32, float16 or bfloat16).
      **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
      inputs: keys: a tensor or a RaggedTensor of any shape; with a combiner a tensor, SparseTensor or RaggedTensor
        [B, L]. Keys of other integer types are cast.
      weights: with a combiner, the weights of a SparseTensor's or RaggedTensor's keys; None: all weights are 1.

    Output: [..., D], a row for each key; with a combiner [B, D].

    Raises:
      TypeError: `key_dtype` is another type, or the inputs are strings for integer keys or the reverse.
      ValueError: the combiner is unknown.
    """

    built: bool

    def __init__(
        self,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        key_dtype: Any = "int64",
        combiner: str | None = None,
        option: EmbeddingVariableOption | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if combiner is not None and combiner not in _COMBINERS:
            raise ValueError(f"{self.name}: combiner is {combiner!r}, wanted None, {', '.join(_COMBINERS)}")
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.key_dtype = checked_key_type(f"layer '{self.name}'", key_dtype)
        self.combiner = combiner
        self.option = option_configs.from_config(option) if isinstance(option, dict) else option
        # XLA cannot compile lookups, and keys must not be cast to the layer's type.
        self.supports_jit = False
        self.autocast = False
        # Finds keys' rows while the model is exported and the weight is a matrix (saved_model_export.py).
        self.places: Any = None
        # The forms in which the layer has had keys: 'dense', 'ragged', 'sparse'.
        self.forms: frozenset[str] = frozenset()
        # Called with the form of keys, instead of a note in `forms`.
        self.check_form: Callable[[str], None] | None = None

    def build(self, input_shape: Any = None) -> None:
        """Creates the table."""
        del input_shape
        if self.built:
            return
        weight = self.add_weight(
            shape=(1, self.output_dim), initializer="zeros", trainable=True, autocast=False, name="embeddings"
        )
        with tf.init_scope(), tf.compat.v1.name_scope(None):
            table = make_table(
                f"{self.path}/embeddings",
                self.output_dim,
                self.key_dtype,
                self.variable_dtype,
                self.embeddings_initializer,
                option=self.option,
            )
        weight._value = table
        weight.__class__ = TableWeight
        self._weight = weight
        self.built = True

    @property
    def table(self) -> DynamicVariable:
        """The table, with its statistics: `total_count()`, `export()`, `get_frequency(keys)`, ..."""
        return self._weight.table

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> tf.Tensor:
        """Returns the rows of keys; see the class."""
        del training  # lookups read it from Keras' state (tables/dynamic/modes.py)
        self._note_form(inputs)
        with contextlib.nullcontext() if self.trainable else evaluating():
            if self.combiner is None:
                found = tf.nn.embedding_lookup(self._weight._value, self._keys(inputs))
            else:
                found = self._pooled(inputs, weights, self.combiner)
        return tf.cast(found, self.compute_dtype) if not isinstance(found, tf.RaggedTensor) else found

    def _note_form(self, keys: Any) -> None:
        is_ragged, is_sparse = isinstance(keys, tf.RaggedTensor), isinstance(keys, tf.SparseTensor)
        form = "ragged" if is_ragged else "sparse" if is_sparse else "dense"
        if self.check_form is not None:
            self.check_form(form)
        elif form not in self.forms:
            self.forms |= {form}

    def _keys(self, keys: Any) -> Any:
        if not isinstance(keys, (tf.SparseTensor, tf.RaggedTensor)):
            keys = tf.convert_to_tensor(keys)
        if self.places is None:  # Keras traces a model of a class with numbers of its own when it is exported
            self._check_kind(keys.dtype)
        if keys.dtype not in (tf.int64, tf.int32, tf.string):
            keys = tf.cast(keys, self.key_dtype)
        if self.places is None:
            return keys
        if isinstance(keys, tf.SparseTensor):
            return keys.with_values(self.places.of(keys.values))
        if isinstance(keys, tf.RaggedTensor):
            return keys.with_flat_values(self.places.of(keys.flat_values))
        return self.places.of(keys)

    def _check_kind(self, dtype: Any) -> None:
        got = tf.as_dtype(dtype)
        if (got == tf.string) != (self.key_dtype == tf.string):
            raise TypeError(wrong_keys(f"layer '{self.name}'", got, self.key_dtype))

    def _pooled(self, inputs: Any, weights: Any, combiner: str) -> tf.Tensor:
        keys = self._keys(inputs)
        if isinstance(keys, tf.Tensor):
            if weights is not None:
                raise ValueError(f"{self.name}: weights are for a SparseTensor or a RaggedTensor, got {inputs}")
            keys = tf.RaggedTensor.from_tensor(keys, ragged_rank=1)
        pooled = lookup_pooled(self._weight._value, keys, weights, combiner)
        return tf.ensure_shape(pooled, [None, self.output_dim])

    def compute_output_shape(self, input_shape: Any, *args: Any) -> tuple[Any, ...]:
        """Returns the shape [..., D], or [B, D] with a combiner."""
        if self.combiner is not None:
            return (input_shape[0], self.output_dim)
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any, *args: Any, **kwargs: Any) -> keras.KerasTensor:
        """Returns the specification of the output; see `compute_output_shape`."""
        self._check_kind(inputs.dtype)  # already when the model is made, not only in its first step
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def save_own_variables(self, store: Any) -> None:
        """Writes the table with its slots and counts to one of Keras' files, as bytes."""
        for name, content in zip(_FILES, serialized.to_strings(self.table).numpy(), strict=True):
            store[name] = np.frombuffer(content, np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Restores the table from one of Keras' files."""
        serialized.from_strings(self.table, tf.constant([np.asarray(store[name]).tobytes() for name in _FILES]))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "key_dtype": self.key_dtype.name,
            "combiner": self.combiner,
            "option": None if self.option is None else option_configs.to_config(self.option),
        }


def weight_of(layer: DynamicEmbedding) -> Any:
    """Returns the variable of Keras that holds the table of a layer."""
    return layer._weight
