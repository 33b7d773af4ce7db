"""`DistributedEmbedding` of Keras RS with dynamic tables: `TableConfig`s without a vocabulary size.

This module imports Keras and Keras RS. It needs eager execution of TensorFlow, and Keras 3.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import keras_rs
import tensorflow as tf
from keras_rs.src.layers.embedding.base_distributed_embedding import SUPPORTED_PLACEMENTS

from lockstep._src.keras import option_configs
from lockstep._src.keras.dynamic_embedding import DynamicEmbedding
from lockstep._src.tables.dynamic.table_options import EmbeddingVariableOption


@dataclasses.dataclass(order=True)
class TableConfig(keras_rs.layers.TableConfig):
    """The configuration of one table of `lockstep.keras.DistributedEmbedding`; after `keras_rs.layers.TableConfig`.

    Attributes:
      name: the table's name.
      vocabulary_size: the number of rows; None: a dynamic table, in which each key has a row.
      embedding_dim: the dimension D of the rows.
      key_dtype: the type of a dynamic table's keys: 'int64', 'int32' or 'string'.
      option: filters, eviction and similar options of a dynamic table (`EmbeddingVariableOption`).
      initializer, optimizer, combiner, placement: as in Keras RS.

    """

    vocabulary_size: int | None = None
    embedding_dim: int = dataclasses.field(kw_only=True)
    key_dtype: str = dataclasses.field(default="int64", kw_only=True)
    option: EmbeddingVariableOption | None = dataclasses.field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError: options of dynamic tables for a table with a vocabulary, or an unknown placement."""
        if self.vocabulary_size is not None and (self.option is not None or self.key_dtype != "int64"):
            raise ValueError(
                f"table '{self.name}': key_dtype and option are only for dynamic tables; got vocabulary_size "
                f"{self.vocabulary_size}, wanted None"
            )
        if self.placement not in SUPPORTED_PLACEMENTS:
            raise ValueError(f"table '{self.name}': placement is {self.placement!r}, wanted {SUPPORTED_PLACEMENTS}")

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, in the form of Keras' files."""
        option = None if self.option is None else option_configs.to_config(self.option)
        return {**super().get_config(), "key_dtype": self.key_dtype, "option": option}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TableConfig:
        """Returns a configuration from `get_config()` of one, or of one of Keras RS."""
        option = config.get("option")
        return super().from_config({**config, "option": None if option is None else option_configs.from_config(option)})


class _DynamicEmbedReduce(DynamicEmbedding):
    """A dynamic table with the inputs of `keras_rs.layers.EmbedReduce`: a batch of ids, or of lists of ids."""

    @property
    def embeddings(self) -> Any:
        """The table as a weight, by the name that it has in `EmbedReduce`."""
        return self._weight

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> tf.Tensor:
        """Returns the combined rows [B, D] of ids [B] or [B, L], which may be dense, ragged or sparse."""
        self._note_form(inputs)
        if not isinstance(inputs, (tf.SparseTensor, tf.RaggedTensor)):
            inputs = tf.convert_to_tensor(inputs)
            if weights is not None:
                weights = tf.cast(weights, tf.float32)
            if inputs.shape.rank == 1:
                # The mean of a single row is the row, for any weight.
                weights = None if weights is None or self.combiner != "sum" else weights[:, tf.newaxis]
                inputs = inputs[:, tf.newaxis]
            if weights is not None:
                if weights.shape.rank == 1:
                    weights = weights[:, tf.newaxis]
                weights = tf.RaggedTensor.from_tensor(tf.broadcast_to(weights, tf.shape(inputs)), ragged_rank=1)
            inputs = tf.RaggedTensor.from_tensor(inputs, ragged_rank=1)
        return super().call(inputs, weights, training)

    def compute_output_shape(self, input_shape: Any, *args: Any) -> tuple[Any, ...]:
        """Returns the shape [B, D]."""
        return (input_shape[0], self.output_dim)


@keras.saving.register_keras_serializable("lockstep")
class DistributedEmbedding(keras_rs.layers.DistributedEmbedding):
    """`keras_rs.layers.DistributedEmbedding` whose tables may be dynamic: `TableConfig(vocabulary_size=None)`.

    Keras RS creates tables with a vocabulary size, and an `embedding_scope()` shards them. Dynamic tables are
    distributed over the workers in any scope. Their option and lookups are the same as in
    `lockstep.keras.DynamicEmbedding`.

    Args:
      feature_configs: a structure of `keras_rs.layers.FeatureConfig`, whose tables may be `lockstep.keras.TableConfig`.
      **kwargs: arguments of Keras RS' layer.

    Call arguments: as of Keras RS' layer. Ids of a dynamic table are keys, any int64, int32 or string.

    Output: a structure like `feature_configs` of tensors [B, D].

    Raises:
      ValueError: a dynamic table is placed on 'sparsecore', without a TPU.
    """

    def _default_device_init(self, feature_configs: dict[str, Any], table_stacking: Any) -> None:
        dynamic = {path: f for path, f in feature_configs.items() if f.table.vocabulary_size is None}
        static = {path: f for path, f in feature_configs.items() if path not in dynamic}
        super()._default_device_init(static, table_stacking)
        layers: dict[int, _DynamicEmbedReduce] = {}
        for path, feature in dynamic.items():
            table = feature.table
            if id(table) not in layers:
                layers[id(table)] = _DynamicEmbedReduce(
                    table.embedding_dim,
                    embeddings_initializer=table.initializer,
                    key_dtype=table.key_dtype,
                    combiner=table.combiner,
                    option=table.option,
                    name=table.name,
                )
            self._default_device_embedding_layers[path] = layers[id(table)]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DistributedEmbedding:
        """Returns a layer from the result of `get_config()`."""
        config = dict(config)
        tables = [TableConfig.from_config(table) for table in config.pop("tables")]

        def feature(leaf: Any) -> Any:
            if not isinstance(leaf, dict) or not isinstance(leaf.get("name"), str):
                return None
            return keras_rs.layers.FeatureConfig(**{**leaf, "table": tables[leaf["table"]]})

        return cls(**{**config, "feature_configs": keras.tree.traverse(feature, config["feature_configs"])})
