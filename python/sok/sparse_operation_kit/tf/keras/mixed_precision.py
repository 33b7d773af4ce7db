"""Scaled losses in graphs of TensorFlow 1. Programs of TensorFlow 2 use `tf.keras.mixed_precision`."""

from typing import Any

from lockstep._src.compat.sok import loss_scaling as _loss_scaling

__all__ = ["LossScaleOptimizer"]


class LossScaleOptimizer(_loss_scaling.LossScaleOptimizer):
    """An optimizer for gradients of a scaled loss.

    Has `get_scaled_loss(loss)`, `get_unscaled_gradients(grads)` and `apply_gradients(grads_and_vars)`, which takes
    unscaled gradients; other attributes are the optimizer's.

    Args:
      optimizer: the optimizer, of TensorFlow 1 or of Keras 2.
      loss_scale: a number; or "dynamic": the scale grows, and shrinks after a step whose gradients are not finite on
        some rank, which is left out.
    """

    def __init__(self, optimizer: Any, loss_scale: Any) -> None:
        super().__init__(optimizer, loss_scale)
