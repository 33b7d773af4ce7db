"""`sok.tf.keras.mixed_precision.LossScaleOptimizer` of SOK 1.x, for graphs of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.compat.sok import job

_scales = tf.compat.v1.mixed_precision


class LossScaleOptimizer:
    """An optimizer of scaled losses; see `sparse_operation_kit.tf.keras.mixed_precision.LossScaleOptimizer`."""

    __module__ = "sparse_operation_kit.tf.keras.mixed_precision"

    def __init__(self, optimizer: Any, loss_scale: Any) -> None:
        self._optimizer = optimizer
        if loss_scale == "dynamic":
            loss_scale = _scales.DynamicLossScale()
        elif not isinstance(loss_scale, _scales.LossScale):
            loss_scale = _scales.FixedLossScale(loss_scale)
        self._scale = loss_scale

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":
            raise AttributeError(name)  # the object is being copied
        return getattr(self._optimizer, name)

    @property
    def loss_scale(self) -> Any:
        """The scale; called, it returns the current number."""
        return self._scale

    @property
    def initializer(self) -> tf.Operation:
        """The initializer of the wrapped optimizer, or an operation that does nothing."""
        inner = getattr(self._optimizer, "initializer", None)
        return tf.no_op() if inner is None else inner

    def get_scaled_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale; a function for a function."""
        if callable(loss):
            return lambda: self.get_scaled_loss(loss())
        return loss * tf.cast(self._scale(), loss.dtype)

    def get_unscaled_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Returns gradients divided by the scale; slices stay slices, and None stays None."""
        factor = 1.0 / self._scale()

        def unscaled(gradient: Any) -> Any:
            if isinstance(gradient, tf.IndexedSlices):
                return tf.IndexedSlices(unscaled(gradient.values), gradient.indices, gradient.dense_shape)
            return None if gradient is None else gradient * tf.cast(factor, gradient.dtype)

        return [unscaled(gradient) for gradient in grads]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies gradients that are not scaled. A dynamic scale skips the step if one of any rank is not finite."""
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if isinstance(self._scale, _scales.FixedLossScale):
            return self._optimizer.apply_gradients(pairs, *args, **kwargs)
        finite = _all_finite([g for g, _ in pairs])
        with tf.control_dependencies([finite]):
            # The scale decides by the gradient that it gets, which is the same on all ranks.
            update, should_apply = self._scale.update([tf.where(finite, 0.0, float("inf"))])
        applied = tf.cond(
            should_apply, lambda: tf.group(self._optimizer.apply_gradients(pairs, *args, **kwargs)), tf.no_op
        )
        return tf.group(update, applied)


def _all_finite(gradients: list[Any]) -> tf.Tensor:
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])
    return tf.cast(job.allreduce(tf.cast(finite, tf.int32), "min"), tf.bool) if job.is_shared() else finite
