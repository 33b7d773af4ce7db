"""Batch normalization over all ranks. Imports Keras."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.replicas.named_moments import moments_of_all

_IS_KERAS3 = "reduction_axes" not in inspect.signature(tf.keras.layers.BatchNormalization._moments).parameters


@tf.keras.utils.register_keras_serializable("horovod")
class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalization by the moments of all ranks' batches, each weighted by its number of values.

    Args:
      fused: False.
      **kwargs: arguments of `tf.keras.layers.BatchNormalization`.

    Raises:
      ValueError: `fused` is True or None.
    """

    # Saved models name it.
    __module__ = "horovod.tensorflow.sync_batch_norm"

    def __init__(self, fused: bool = False, **kwargs: Any):
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if not _IS_KERAS3:
            kwargs["fused"] = False
        super().__init__(**kwargs)

    def _moments_of_all(self, inputs: tf.Tensor, axes: Any, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        if mask is not None:
            mask = mask[..., tf.newaxis]
        return moments_of_all(inputs, axes, mask, f"{self.name}/moments")

    def _moments_of_keras3(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        mean, variance = self._moments_of_all(inputs, self._reduction_axes, mask)
        return tf.squeeze(mean, self._reduction_axes), tf.squeeze(variance, self._reduction_axes)

    def _moments_of_keras2(
        self, inputs: tf.Tensor, reduction_axes: Any, keep_dims: bool, mask: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        mean, variance = self._moments_of_all(inputs, reduction_axes, mask)
        if keep_dims:
            return mean, variance
        return tf.squeeze(mean, reduction_axes), tf.squeeze(variance, reduction_axes)

    _moments: Callable[..., tuple[tf.Tensor, tf.Tensor]] = _moments_of_keras3 if _IS_KERAS3 else _moments_of_keras2

    if not _IS_KERAS3:

        def call(self, *args: Any, **kwargs: Any) -> tf.Tensor:
            """Normalizes `inputs`; a graph of TensorFlow 1 gets updates of the moving averages in its UPDATE_OPS."""
            outputs = super().call(*args, **kwargs)
            if not tf.compat.v1.executing_eagerly_outside_functions():
                for update in self.updates:
                    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, update)
            return outputs
