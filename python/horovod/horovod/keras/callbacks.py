"""Callbacks of Keras for jobs of several ranks: `horovod.keras.callbacks`."""

from __future__ import annotations

from typing import Any

import keras

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
      mode: likewise.
      save_freq: likewise.
      save_weights_only: likewise.
      filepath: where; may be set later, as the attribute `filepath`.

    Raises:
      ValueError: when training begins, there is no `filepath`.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        save_weights_only: bool = False,
        filepath: Any = None,
    ):
        super().__init__(filepath, save_weights_only, monitor=monitor, verbose=verbose, mode=mode, save_freq=save_freq)
