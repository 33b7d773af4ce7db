"""Callbacks at the end of an epoch: averages of metrics, and the best model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep._src.collectives import named_job
from lockstep._src.compat.horovod import job
from lockstep._src.compat.horovod.keras.base import KerasCallback
from lockstep._src.compat.horovod.objects import allgather_object

if TYPE_CHECKING:
    from keras.callbacks import ModelCheckpoint
else:
    ModelCheckpoint = object  # the façade adds the class of its own Keras


class MetricAverage(KerasCallback):
    """Averages metrics over all ranks at the end of an epoch.

    Put it before callbacks that look at metrics, such as ReduceLROnPlateau. Ranks that have different metrics get
    ValueError, with the names.

    Args:
      device: not needed.
    """

    def __init__(self, device: str = ""):
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages `logs` in place; raises ValueError on all ranks if they have different metrics."""
        if logs is None:
            return
        everyones = allgather_object({name: np.asarray(value) for name, value in logs.items()})
        for rank, theirs in enumerate(everyones):
            if theirs.keys() != everyones[0].keys():
                names = f"rank 0 has the metrics {sorted(everyones[0])}, rank {rank} {sorted(theirs)}"
                raise ValueError(f"MetricAverageCallback: {names}")
        for name in logs:
            mean = np.mean([theirs[name] for theirs in everyones], axis=0, dtype=np.float64)
            logs[name] = mean if mean.ndim else float(mean)


class BestModelCheckpoint(ModelCheckpoint):
    """Saves the model when it is better than ever before, on rank 0, regardless of which ranks have the callback.

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

    keras_base = "ModelCheckpoint"
    filepath: Any

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: Any = None,
    ):
        # Keras looks at the ending of a name at once.
        unnamed = "unnamed.weights.h5" if save_weights_only else "unnamed.keras"
        super().__init__(
            filepath=unnamed if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins training; raises ValueError if `filepath` was not set."""
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: set `filepath`, where the best model is saved, before training")
        super().on_train_begin(logs)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        # Several ranks would write one file.
        if not named_job.is_started() or job.rank() == 0:
            super()._save_model(*args, **kwargs)
