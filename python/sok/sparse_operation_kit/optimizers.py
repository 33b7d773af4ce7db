"""Optimizers for tables."""

from typing import Any

from lockstep._src.compat.sok import plugin_adam as _plugin_adam
from lockstep._src.compat.sok.optimizers import SGD
from sparse_operation_kit.version_1 import split_embedding_variable_from_others

__all__ = ["SGD", "Adam", "split_embedding_variable_from_others"]


class Adam(_plugin_adam.Adam):
    """Adam for the tables of layers of SOK 1.x. It needs no `OptimizerScope`.

    It is the Adam of the program's Keras, so in each step the moments decay in all rows. In a graph of TensorFlow 1 it
    is Keras 2's Adam if `tf.keras` is Keras 2, else TensorFlow's. A process may have several.

    Args:
      learning_rate: a number, a tensor, or a schedule of Keras.
      beta_1: the decay of the first moment.
      beta_2: the decay of the second moment.
      epsilon: a small number that is added to the root; None or 0 for 1e-7.
      name: the name.
      **kwargs: `lr` instead of `learning_rate`; others have no effect.

    `apply_gradients` raises ValueError if a variable is not a table, and NotImplementedError for a dense gradient.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = 1e-7,
        name: str = "Plugin_Adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name, **kwargs)
