"""Horovod's API for Keras: `import horovod.keras as hvd`, with the `keras` that is installed: 2 or 3."""

import keras

from horovod._keras import shared
from horovod._keras.shared import *  # noqa: F403
from horovod.keras import callbacks
from horovod.tensorflow import Adasum
from lockstep._src.compat.horovod.keras import optimizers
from lockstep._src.compat.horovod.keras.signatures import with_moved_parameters
from lockstep._src.compat.lazy import lazy_names

__all__ = [
    *shared.__all__,
    "Adasum",
    "DistributedOptimizer",
    "callbacks",
    "load_model",
]

load_model = shared.make_load_model(keras)
__getattr__, __dir__ = lazy_names(__name__, {"elastic": "horovod.keras.elastic"})

DistributedOptimizer = with_moved_parameters(
    shared.DistributedOptimizer, ["num_groups", "groups"], "backward_passes_per_step", optimizers.make_optimizer
)
DistributedOptimizer.__module__ = __name__
