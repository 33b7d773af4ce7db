"""Callbacks of Keras for jobs of several ranks: `horovod.keras.callbacks`."""

import keras

from horovod._keras import callbacks as of_keras
from horovod._keras.signatures import with_moved_parameters

(
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    BestModelCheckpoint,
) = of_keras.callback_classes(keras, __name__)

BestModelCheckpoint.__init__ = with_moved_parameters(
    of_keras.BestModelCheckpoint.__init__, ["save_weights_only"], "filepath"
)
