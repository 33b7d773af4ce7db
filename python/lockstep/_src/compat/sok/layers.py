"""The layers of SOK 1.x, for Keras 3 and Keras 2."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NoReturn

import tensorflow as tf

from lockstep._src.compat.sok import any_keras, initializers, layer_lookups, native_optimizers, version_1
from lockstep._src.compat.sok.embedding_tables import EmbeddingVariable, LayerHandle

_COMBINERS = ("sum", "mean")


class TableLayer(any_keras.ExtendsKeras):
    """A layer of Keras with one table, which exists as soon as the layer does."""

    @classmethod
    def _base_in(cls, keras: ModuleType) -> type:
        return keras.layers.Layer

    def _hold(self, table: Any) -> None:
        """Makes a table the weight of the layer."""
        # Keras must not find the variable of TensorFlow here a second time.
        self.__dict__["_sok_table"] = table
        if any_keras.is_of_keras_3(self):
            from lockstep._src.compat.sok import keras3_weights

            # XLA cannot compile lookups, and keys must not be cast.
            self.supports_jit = self.autocast = False
            self._weight = keras3_weights.weight_of(table, table.name.split(":")[0])
        else:
            self._weight = table
        native_optimizers.register(table)

    @property
    def _output_type(self) -> tf.DType:
        # Without a policy, Keras 2 has none in graphs of TensorFlow 1.
        return tf.as_dtype(getattr(self, "compute_dtype", None) or "float32")

    def build(self, input_shape: Any = None) -> None:
        """Does nothing: the table exists."""
        del input_shape
        self.built = True

    def save_own_variables(self, store: Any) -> NoReturn:
        """Raises NotImplementedError: files of Keras have no place for rows of several ranks."""
        raise NotImplementedError(f"layer '{self.name}': Keras does not save tables of SOK; use sok.Saver")

    def load_own_variables(self, store: Any) -> NoReturn:
        """Raises NotImplementedError; see `save_own_variables`."""
        raise NotImplementedError(f"layer '{self.name}': Keras does not load tables of SOK; use sok.Saver")

    def _compute_output_spec(self, shape: tuple[Any, ...]) -> Any:
        return sys.modules["keras"].KerasTensor(shape, dtype=self._output_type.name)


class _EmbeddingLayer(TableLayer):
    """The common part of the two layers; the arguments are theirs."""

    def __init__(
        self,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        use_hashtable: bool,
        key_dtype: Any,
        embedding_initializer: Any,
        combiner: str | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_vocabulary_size_per_gpu = max_vocabulary_size_per_gpu
        self.embedding_vec_size = embedding_vec_size
        self.slot_num = slot_num
        self.use_hashtable = use_hashtable
        self.key_dtype = tf.int64 if key_dtype is None else tf.as_dtype(key_dtype)
        initializer = embedding_initializer
        if isinstance(initializer, (str, dict)):
            initializer = any_keras.keras_of_program().initializers.get(initializer)
        self.embedding_initializer = initializer
        version_1.replica_batch_size()  # an error if sok.Init was not called
        table = EmbeddingVariable.CreateInstances(
            shape=[max_vocabulary_size_per_gpu, embedding_vec_size],
            use_hashtable=use_hashtable,
            key_dtype=self.key_dtype,
            initializer=initializer,
        )
        initializer_op = None if tf.executing_eagerly() else tf.no_op()
        handle = LayerHandle(table.handle, initializer_op, self._output_type, combiner)
        table.set_embedding_layer(handle)
        if not tf.executing_eagerly():
            tf.compat.v1.add_to_collection(version_1.GraphKeys.SparseOperationKitEmbeddingLayers, handle)
        self._hold(table)

    @property
    def embedding_variable(self) -> EmbeddingVariable:
        """The table, a variable of TensorFlow. In Keras 3, `trainable_variables` has a Keras variable that holds it."""
        return vars(self)["_sok_table"]

    @property
    def var(self) -> EmbeddingVariable:
        """`embedding_variable`."""
        return self.embedding_variable

    @property
    def emb_layer(self) -> LayerHandle:
        """The part of the layer that lookups need."""
        return self.embedding_variable.embedding_layer

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        initializer = self.embedding_initializer
        if isinstance(initializer, initializers.InPlaceInitializer):
            initializer = initializer.name
        elif hasattr(initializer, "get_config"):
            initializer = any_keras.keras_of_program().initializers.serialize(initializer)
        return {
            **super().get_config(),
            "max_vocabulary_size_per_gpu": self.max_vocabulary_size_per_gpu,
            "embedding_vec_size": self.embedding_vec_size,
            "slot_num": self.slot_num,
            "use_hashtable": self.use_hashtable,
            "key_dtype": self.key_dtype.name,
            "embedding_initializer": initializer,
        }


class DistributedEmbedding(_EmbeddingLayer):
    """A layer that combines the rows of several keys for each slot. All ranks make it and call it together.

    Key k is on rank k mod N. The layer is one of the program's Keras, `tf.keras`. Letters: N ranks, B examples of a
    batch on this rank, which are `global_batch_size` of `sok.Init` divided by N, D the dimension of a row.

    Args:
      combiner: "sum" or "mean".
      max_vocabulary_size_per_gpu: the largest number of keys on each rank.
      embedding_vec_size: D.
      slot_num: the number of slots, which are features with rows of the same dimension.
      max_nnz: the number of keys of a slot. It is not needed here: a slot may have more.
      max_feature_num: the number of keys of an example, from 1 to slot_num * max_nnz. It is not needed here.
      use_hashtable: True: any integers are keys, and a key has a row from its first lookup in training on. False: keys
        are below max_vocabulary_size_per_gpu * N.
      key_dtype: the type of keys, int64 or uint32; None for int64.
      embedding_initializer: an initializer of Keras or its name; None for values between -0.05 and 0.05. The first row
        of a key does not depend on the number of ranks.
      **kwargs: arguments of `tf.keras.layers.Layer`.

    Call arguments:
      inputs: tf.SparseTensor; row `slot_num * example + slot` has the keys of a slot. Its dense shape has no effect.
      training: False: no keys are added, and a key without a row reads zeros, or the constant with which rows begin.

    Output: [B, slot_num, D], zeros for a slot without keys. The gradient of the table is the sum over all ranks'
    losses.

    Raises:
      ValueError: an argument has a wrong value.
      TypeError: keys have another type, or the inputs are not a tf.SparseTensor.
      RuntimeError: before `sok.Init`.
      tf.errors.InvalidArgumentError: an input has more rows than B * slot_num, a key is out of range, or a rank has too
        many keys.
    """

    __module__ = "sparse_operation_kit"

    def __init__(
        self,
        combiner: str,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        max_nnz: int,
        max_feature_num: int = 1,
        use_hashtable: bool = True,
        key_dtype: Any = None,
        embedding_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(combiner, str) or combiner.lower() not in _COMBINERS:
            raise ValueError(f"combiner is {combiner!r}, wanted 'sum' or 'mean'")
        _check_positive(slot_num=slot_num, max_nnz=max_nnz)
        if not 1 <= max_feature_num <= slot_num * max_nnz:
            raise ValueError(
                f"max_feature_num must be in range of [1, slot_num * max_nnz]: got {max_feature_num}, wanted at most "
                f"{slot_num * max_nnz}"
            )
        super().__init__(
            max_vocabulary_size_per_gpu,
            embedding_vec_size,
            slot_num,
            use_hashtable,
            key_dtype,
            embedding_initializer,
            combiner.lower(),
            **kwargs,
        )
        self.combiner = combiner.lower()
        self.max_nnz = max_nnz
        self.max_feature_num = max_feature_num

    def call(self, inputs: tf.SparseTensor, training: bool = True) -> tf.Tensor:
        """Returns the combined rows, [B, slot_num, D]."""
        return layer_lookups.lookup_sparse(self.embedding_variable, inputs, self.slot_num, training)

    def compute_output_shape(self, input_shape: Any) -> tuple[int, int, int]:
        """Returns the shape (B, slot_num, D)."""
        del input_shape
        return version_1.replica_batch_size(), self.slot_num, self.embedding_vec_size

    def compute_output_spec(self, inputs: Any, training: Any = None) -> Any:
        """Returns Keras 3's description of the output."""
        return self._compute_output_spec(self.compute_output_shape(inputs.shape))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        more = {"combiner": self.combiner, "max_nnz": self.max_nnz, "max_feature_num": self.max_feature_num}
        return {**super().get_config(), **more}


class All2AllDenseEmbedding(_EmbeddingLayer):
    """A layer that returns a row for each key. All ranks make it and call it together.

    Key k is on rank k mod N. The layer is one of the program's Keras, `tf.keras`. Letters: N ranks, D the dimension of
    a row.

    Args:
      max_vocabulary_size_per_gpu: the largest number of keys on each rank.
      embedding_vec_size: D.
      slot_num: the number of slots, which are features with rows of the same dimension.
      nnz_per_slot: the number of keys of a slot.
      dynamic_input: whether the inputs are one list of keys of any length.
      use_hashtable, key_dtype, embedding_initializer, **kwargs: as in `DistributedEmbedding`.

    Call arguments:
      inputs: keys, [batch, slot_num, nnz_per_slot]; with `dynamic_input` [keys]. Ranks may have different numbers.
      training: as in `DistributedEmbedding`.

    Output: [..., D], with gradients as in `DistributedEmbedding`.

    Raises:
      ValueError: an argument has a wrong value, or the inputs have another rank.
      TypeError: keys have another type.
      RuntimeError: before `sok.Init`.
      tf.errors.InvalidArgumentError: a key is out of range, or a rank has too many keys.
    """

    __module__ = "sparse_operation_kit"

    def __init__(
        self,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        nnz_per_slot: int,
        dynamic_input: bool = False,
        use_hashtable: bool = True,
        key_dtype: Any = None,
        embedding_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        _check_positive(slot_num=slot_num, nnz_per_slot=nnz_per_slot)
        super().__init__(
            max_vocabulary_size_per_gpu,
            embedding_vec_size,
            slot_num,
            use_hashtable,
            key_dtype,
            embedding_initializer,
            None,
            **kwargs,
        )
        self.nnz_per_slot = nnz_per_slot
        self.dynamic_input = dynamic_input

    def call(self, inputs: tf.Tensor, training: bool = True) -> tf.Tensor:
        """Returns a row for each key, [..., D]."""
        return layer_lookups.lookup_dense(self.embedding_variable, inputs, training, self.dynamic_input)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Returns the shape [..., D]."""
        return (*input_shape, self.embedding_vec_size)

    def compute_output_spec(self, inputs: Any, training: Any = None) -> Any:
        """Returns Keras 3's description of the output."""
        return self._compute_output_spec(self.compute_output_shape(inputs.shape))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "nnz_per_slot": self.nnz_per_slot, "dynamic_input": self.dynamic_input}


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be >= 1: got {value}")
