"""Callbacks of Keras for jobs of several ranks: `horovod.tensorflow.keras.callbacks`."""

from __future__ import annotations

from typing import Any

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
    """Saves the model when it is better than ever before. See `horovod._keras.callbacks.BestModelCheckpoint`.

    Args:
      monitor: as of `ModelCheckpoint`, like all that follow.
      verbose: likewise.
      save_weights_only: likewise.
      mode: likewise.
      save_freq: likewise.
      filepath: where; may be set later, as the attribute `filepath`.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: Any = None,
    ):
        super().__init__(filepath, save_weights_only, monitor=monitor, verbose=verbose, mode=mode, save_freq=save_freq)
