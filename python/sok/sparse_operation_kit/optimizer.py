"""Optimizers for dynamic variables."""

from typing import Any

from lockstep._src.compat.sok import optimizers
from lockstep._src.compat.sok.optimizers import SGD

__all__ = ["OptimizerWrapper", "SGD"]


def OptimizerWrapper(optimizer: Any) -> optimizers.Wrapper:  # noqa: N802
    """Wraps an optimizer so that it can update dynamic variables.

    It updates the rows that have a gradient, and no others; so `Adam` is lazy. Variables of other kinds are updated as
    by the optimizer itself. It counts its own steps.

    Args:
      optimizer: of `tf.compat.v1.train`, of Keras 3, or of Keras 2, legacy or not.

    Returns:
      An object with `apply_gradients(grads_and_vars, global_step=None, name=None)`, `lr`, `get_slot_names()` and
      `get_slot(var, name)`.

    Raises:
      TypeError: another object.
      NotImplementedError: the optimizer has an option that is not implemented for dynamic variables.
    """
    return optimizers.wrap(optimizer)
