"""Feature columns as dense tensors, one for each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

_tf1 = tf.compat.v1


def dense_features(features: Mapping[str, Any], feature_columns: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the dense tensors of feature columns; after HybridBackend's `hb.keras.layers.dense_features`.

    Tables of embedding columns are sharded in an `embedding_scope`.

    Args:
      features: name -> a dense or sparse tensor of B rows.
      feature_columns: columns of `tf.feature_column`.

    Returns:
      A tensor [B, width of the column] for each column, in their order.

    Raises:
      RuntimeError: TensorFlow runs eagerly; feature columns create their variables in graphs.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "dense_features: got eager execution, wanted a graph; call tf.compat.v1.disable_v2_behavior() first"
        )
    outputs: dict[Any, tf.Tensor] = {}
    _tf1.feature_column.input_layer(features, list(feature_columns), cols_to_output_tensors=outputs)
    return [outputs[column] for column in feature_columns]
