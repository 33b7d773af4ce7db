"""`sok.optimizers.Adam` of SOK 1.x: the program's own Adam, which refuses variables that are not tables.

Its `LazyAdamOptimizer` is this library's.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tensorflow as tf

from lockstep._src.compat.sok import any_keras, native_optimizers, version_1
from lockstep._src.compat.sok.embedding_tables import EmbeddingVariable
from lockstep._src.tables.updates.lazy_adam import LazyAdamOptimizer

__all__ = ["Adam", "LazyAdamOptimizer"]

_EPSILON = 1e-7


class _TablesOnly:
    """The part of an Adam of tables that comes before a library's Adam, the next base class."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = _EPSILON,
        name: str = "Plugin_Adam",
        **kwargs: Any,
    ) -> None:
        # The libraries name these four differently, and have them in this order.
        rate = kwargs.get("lr", learning_rate)
        super().__init__(rate, beta_1, beta_2, epsilon or _EPSILON, name=name)  # type: ignore[call-arg]
        if not tf.executing_eagerly():
            tf.compat.v1.add_to_collection(version_1.GraphKeys.SparseOperationKitOptimizer, self)

    def apply_gradients(
        self,
        grads_and_vars: Any,
        *args: Any,
        name: str | None = None,
        experimental_aggregate_gradients: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Applies gradients of tables.

        Args:
          grads_and_vars: pairs of tf.IndexedSlices and a table.
          *args: further arguments of the library's optimizer.
          name: not used.
          experimental_aggregate_gradients: not used: gradients are sums over the ranks.
          **kwargs: further arguments of the library's optimizer.

        Raises:
          ValueError: a variable is not a table.
          NotImplementedError: a gradient is dense.
        """
        del name, experimental_aggregate_gradients
        pairs = list(grads_and_vars)
        for gradient, variable in pairs:
            table = getattr(variable, "_value", variable)
            if not isinstance(table, EmbeddingVariable):
                raise ValueError(f"This optimizer can only be used to EmbeddingVariable. But got {variable!r}")
            if gradient is not None and not isinstance(gradient, tf.IndexedSlices):
                raise NotImplementedError(
                    f"sok.optimizers.Adam: the gradient of '{table.m_var_name}' is dense, wanted tf.IndexedSlices; use "
                    "another optimizer"
                )
            native_optimizers.register(table)
        return super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]

    @property
    def initializer(self) -> tf.Operation | None:
        """In a graph, an operation to run with the initializers of variables; it does nothing."""
        return None if tf.executing_eagerly() else tf.no_op()


class Adam(_TablesOnly, any_keras.ExtendsKeras):
    """Adam for tables; see `sparse_operation_kit.optimizers.Adam`."""

    __module__ = "sparse_operation_kit.optimizers"

    @classmethod
    def _base_in(cls, keras: ModuleType) -> type:
        if any_keras.is_keras_3(keras):
            return keras.optimizers.Adam
        # Only legacy optimizers work in graphs of TensorFlow 1.
        return keras.optimizers.legacy.Adam

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes an optimizer of the program's Keras; one of TensorFlow 1 in a graph, unless there is Keras 2."""
        in_graph = not tf.compat.v1.executing_eagerly_outside_functions()
        if not cls._is_joined and in_graph and any_keras.is_keras_3(any_keras.keras_of_program()):
            return _GraphAdam(*args, **kwargs)
        return super().__new__(cls, *args, **kwargs)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Adam:
        """Returns an optimizer from the result of `get_config`."""
        del custom_objects
        own = ("learning_rate", "beta_1", "beta_2", "epsilon", "name")
        config = {name: config[name] for name in own if name in config}
        if isinstance(config.get("learning_rate"), dict):
            schedules = any_keras.keras_of_program().optimizers.schedules
            config["learning_rate"] = schedules.deserialize(config["learning_rate"])
        return cls(**config)


class _GraphAdam(_TablesOnly, tf.compat.v1.train.AdamOptimizer):
    """`Adam` in graphs of TensorFlow 1, in which optimizers of Keras 3 do not work."""
