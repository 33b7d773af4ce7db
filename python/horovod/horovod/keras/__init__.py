"""Horovod's API for Keras: `import horovod.keras as hvd`, with the `keras` that is installed: 2 or 3."""

import keras

from horovod._keras import shared
from horovod._keras.shared import *  # noqa: F403
from horovod.keras import callbacks
from horovod.tensorflow import Adasum
from lockstep._src.compat.lazy import lazy_names

__all__ = [
    *shared.__all__,
    "Adasum",
    "DistributedOptimizer",
    "callbacks",
    "load_model",
]

load_model, DistributedOptimizer = shared.functions_of(
    __name__, keras, moved=["num_groups", "groups"], before="backward_passes_per_step"
)
__getattr__, __dir__ = lazy_names(__name__, {"elastic": "horovod.keras.elastic"})
