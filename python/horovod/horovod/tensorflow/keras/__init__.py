"""Horovod's API for Keras: `import horovod.tensorflow.keras as hvd`, with `tf.keras`: 2 or 3."""

from tensorflow import keras

from horovod._keras import shared
from horovod._keras.shared import *  # noqa: F403

# Registers the layer with Keras, which then finds it in saved models.
from horovod.tensorflow import sync_batch_norm as _sync_batch_norm  # noqa: F401
from horovod.tensorflow.keras import callbacks
from lockstep._src.compat.lazy import lazy_names

__all__ = [
    *shared.__all__,
    "DistributedOptimizer",
    "callbacks",
    "load_model",
]

load_model, DistributedOptimizer = shared.functions_of(__name__, keras)
__getattr__, __dir__ = lazy_names(__name__, {"elastic": "horovod.tensorflow.keras.elastic"})
