"""Callbacks of Keras for jobs of several ranks: `horovod.tensorflow.keras.callbacks`."""

from __future__ import annotations

from typing import Any

from tensorflow import keras

from horovod._keras import callbacks as of_keras

(
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
) = of_keras.callback_classes(keras, __name__)


class BestModelCheckpoint(of_keras.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):
    """Saves the model when it is better than ever before; rank 0 does, whichever ranks have the callback.

    Args:
      monitor: as for `ModelCheckpoint`, like all that follow.
      verbose: likewise.
      save_weights_only: likewise.
      mode: likewise.
      save_freq: likewise.
      filepath: where; may be set later, as the attribute `filepath`.

    Raises:
      ValueError: when training begins, there is no `filepath`.
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
