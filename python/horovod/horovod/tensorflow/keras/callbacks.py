"""Callbacks of Keras for jobs of several ranks: `horovod.tensorflow.keras.callbacks`."""

from tensorflow import keras

from horovod._keras import callbacks as of_keras

(
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    BestModelCheckpoint,
) = of_keras.callback_classes(keras, __name__)
