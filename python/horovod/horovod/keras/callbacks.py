"""Callbacks of Keras for jobs of several ranks: `horovod.keras.callbacks`."""

import keras

from lockstep._src.compat.horovod.keras import callbacks as of_keras
from lockstep._src.compat.horovod.keras.classes import CALLBACKS, callback_classes
from lockstep._src.compat.horovod.keras.signatures import function_of

(
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    BestModelCheckpoint,
) = callback_classes(keras, __name__, CALLBACKS)

BestModelCheckpoint.__init__ = function_of(
    __name__, of_keras.BestModelCheckpoint.__init__, ["save_weights_only"], "filepath"
)
