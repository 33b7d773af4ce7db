"""The initial values of tables of SOK 1.x."""

from __future__ import annotations

import hashlib
from typing import Any

import tensorflow as tf

_KINDS = {
    "random_uniform": lambda: tf.random_uniform_initializer(-0.05, 0.05),
    "ones": tf.ones_initializer,
    "zeros": tf.zeros_initializer,
}


class InPlaceInitializer:
    """An initializer by name; see `sparse_operation_kit.core.inplace_initializer.InPlaceInitializer`."""

    __module__ = "sparse_operation_kit.core.inplace_initializer"

    name: str

    def __init__(self, **kwargs: Any) -> None:
        vars(self).update(kwargs)

    def serialize(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return vars(self)

    @classmethod
    def deserialize(cls, config: dict[str, Any]) -> InPlaceInitializer:
        """Returns an initializer from the result of `serialize`."""
        return cls(**config)

    def of_tensorflow(self) -> Any:
        """Returns the initializer of TensorFlow that draws the same values.

        Raises:
          ValueError: the name is unknown.
        """
        name = getattr(self, "name", None)
        if name not in _KINDS:
            raise ValueError(f"InPlaceInitializer: name is {name!r}, wanted one of {', '.join(_KINDS)}")
        return _KINDS[name]()

    def __call__(self, shape: Any, dtype: Any = tf.float32, **kwargs: Any) -> tf.Tensor:
        """Returns initial values of a shape."""
        return self.of_tensorflow()(shape, dtype=dtype, **kwargs)


def of_table(initializer: Any, name: str, seed: int | None) -> Any:
    """Returns the initializer of a table.

    Args:
      initializer: one of TensorFlow or Keras, an `InPlaceInitializer`, or a function of a shape and a type; None for
        values between -0.05 and 0.05.
      name: the name of the table.
      seed: the seed of `sok.Init`: an initializer without a seed gets one from it and the name. None: it gets one from
        the graph's seed and the name.
    """
    if initializer is None:
        initializer = InPlaceInitializer(name="random_uniform")
    if isinstance(initializer, InPlaceInitializer):
        initializer = initializer.of_tensorflow()
    if isinstance(initializer, type):
        initializer = initializer()
    config = initializer.get_config() if hasattr(initializer, "get_config") else {}
    if seed is None or config.get("seed", 0) is not None:
        return initializer
    own = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "little") & 0x7FFFFFFF
    return type(initializer).from_config({**config, "seed": own})
