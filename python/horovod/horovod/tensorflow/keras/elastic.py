"""Elastic programs of Keras: `hvd.elastic` of `import horovod.tensorflow.keras as hvd`.

docs/horovod_elastic.md is the manual.
"""

from tensorflow import keras

from horovod._keras import elastic as of_keras
from horovod._keras.elastic import *  # noqa: F403
from lockstep._src.compat.horovod.keras.classes import ELASTIC_CALLBACKS, callback_classes

__all__ = [
    *of_keras.__all__,
    "CommitStateCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]

CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback = callback_classes(
    keras, __name__, ELASTIC_CALLBACKS
)
