"""Callbacks of Keras for jobs of several ranks: `horovod.tensorflow.keras.callbacks`."""

from tensorflow import keras

from lockstep._src.compat.horovod.keras.classes import CALLBACKS, callback_classes

(
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    BestModelCheckpoint,
) = callback_classes(keras, __name__, CALLBACKS)
