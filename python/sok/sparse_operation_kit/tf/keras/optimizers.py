"""Adam in two kinds."""

from typing import Any

import tensorflow as tf

from lockstep._src.compat.sok import plugin_adam as _plugin_adam

__all__ = ["Adam", "LazyAdamOptimizer"]


def Adam(*args: Any, **kwargs: Any) -> Any:  # noqa: N802
    """Returns `tf.keras.optimizers.Adam` with these arguments; SOK's gave the same numbers faster on GPUs."""
    return tf.keras.optimizers.Adam(*args, **kwargs)


class LazyAdamOptimizer(_plugin_adam.LazyAdamOptimizer):
    """Adam of TensorFlow 1 that does not change rows without a gradient: `tf.contrib.opt.LazyAdamOptimizer`."""
