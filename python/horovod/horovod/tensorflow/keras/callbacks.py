"""Callbacks of Keras for jobs of several ranks: `horovod.tensorflow.keras.callbacks`."""

from __future__ import annotations

from tensorflow import keras

from horovod._keras import callbacks as _impl


class BroadcastGlobalVariablesCallback(_impl.BroadcastGlobalVariables, keras.callbacks.Callback):
    """Gives all ranks one rank's variables. See `horovod._keras.callbacks.BroadcastGlobalVariables`."""


class MetricAverageCallback(_impl.MetricAverage, keras.callbacks.Callback):
    """Averages metrics over all ranks at the end of an epoch. See `horovod._keras.callbacks.MetricAverage`."""


class LearningRateScheduleCallback(_impl.LearningRateSchedule, keras.callbacks.Callback):
    """Sets the learning rate, from one epoch to another. See `horovod._keras.callbacks.LearningRateSchedule`."""


class LearningRateWarmupCallback(_impl.LearningRateWarmup, keras.callbacks.Callback):
    """Raises the learning rate over the first epochs. See `horovod._keras.callbacks.LearningRateWarmup`."""


class BestModelCheckpoint(_impl.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):
    """Saves the model when it is better than ever before. See `horovod._keras.callbacks.BestModelCheckpoint`."""
