"""Where the data begins when Keras 3 resumes a training from saved weights.

Keras' files have weights and the number of epochs, and no position in the data. An epoch begins with the first batch,
so nothing is lost between two epochs. Two cases differ: a backup in the middle of an epoch (`save_freq` of
`BackupAndRestore`), and data that continues from epoch to epoch (`steps_per_epoch`). Then worker 0 warns that the data
begins with its first batch, and notifies the launcher with each checkpoint.

`BackupAndRestore` writes weights, then a second file with their epoch. A process that dies between the two would leave
new weights beside the old epoch, and train that epoch again. So the weights' file also has the epoch, as an attribute,
which counts if it is there.

This module imports Keras; a scope imports it if the program has Keras 3.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import tensorflow as tf
from keras.src import callbacks
from keras.src.utils import file_utils

from lockstep._src.collectives import agreement
from lockstep._src.engine.context import context
from lockstep.launch.base import notes


class _Fit(threading.local):
    """The `fit` of this thread.

    Attributes:
      restored: the path of the weights that it has restored, until its first epoch begins.
      continues: whether its data continues from epoch to epoch.
      backup: the callback that saves a backup at this moment.
    """

    restored: str | None = None
    continues = False
    backup: callbacks.BackupAndRestore | None = None


# The attribute of a backup's weights that has the content of its file of metadata.
_STAMP = "lockstep_training_metadata"


_fit = _Fit()


def begin_epoch(steps_per_epoch: int | None) -> None:
    """Warns of data that begins with its first batch; to be called at the first batch of each epoch of training.

    Args:
      steps_per_epoch: the argument of `fit`.
    """
    path, _fit.restored = _fit.restored, None
    _fit.continues = steps_per_epoch is not None
    if path is not None and _fit.continues and context.is_chief:
        tf.compat.v1.logging.warning(
            "%s has weights but no position in the data. With steps_per_epoch=%d the data continues from epoch to "
            "epoch; now it begins with its first batch",
            path,
            steps_per_epoch,
        )


def enumerate_alone(enumerate_batches: Callable[[Any], Iterator[Any]], epoch: Any) -> Iterator[Any]:
    """Returns the batches of Keras' `epoch`; for one worker."""
    begin_epoch(epoch.steps_per_epoch)
    return enumerate_batches(epoch)


def note_restored(path: str | os.PathLike[str]) -> None:
    """Records that a training, which begins, has restored the weights of a path."""
    _fit.restored = os.fspath(path)


def restore_backup(restore: Callable[..., None], self: callbacks.BackupAndRestore, *args: Any, **kwargs: Any) -> None:
    """Begins a training with a `BackupAndRestore`, and warns if it resumes in the middle of an epoch."""
    restore(self, *args, **kwargs)  # has read the same file on all workers
    described = agreement.from_chief(_metadata(self) if context.is_chief else None, "backup_described")
    if described is None:
        return
    self.model._initial_epoch = int(described.get("epoch", 0))
    if not context.is_chief:
        return
    note_restored(self.backup_dir)
    if self.save_freq != "epoch" or described.get("batch"):
        tf.compat.v1.logging.warning(
            "%s has weights from the middle of epoch %d but no position in the data; the epoch's data begins "
            "with its first batch",
            self.backup_dir,
            int(described.get("epoch", 0)) + 1,
        )


def _metadata(backup: callbacks.BackupAndRestore) -> dict[str, Any] | None:
    """Returns the epoch and the batch of the weights of a backup; None if there is none."""
    if file_utils.exists(backup._weights_path) and not file_utils.is_remote_path(backup._weights_path):
        with h5py.File(backup._weights_path) as file:
            if _STAMP in file.attrs:
                return json.loads(file.attrs[_STAMP])
    path = backup._training_metadata_path
    if not file_utils.exists(path):
        return None
    with file_utils.File(path, "r") as file:
        return json.loads(file.read())


def stamp(draft: str, path: str) -> None:
    """Adds epoch and batch to the draft of `path`, if this is the file of weights of the backup that is being saved."""
    backup = _fit.backup
    if backup is not None and path == backup._weights_path:
        with h5py.File(draft, "a") as file:
            file.attrs[_STAMP] = json.dumps({"epoch": backup._current_epoch, "batch": backup._last_batch_seen})


def save_backup(save: Callable[..., None], self: callbacks.BackupAndRestore, *args: Any, **kwargs: Any) -> None:
    """Saves a backup, and notifies the launcher that the same command restores it."""
    _fit.backup = self
    try:
        save(self, *args, **kwargs)
    finally:
        _fit.backup = None
    if context.is_chief and context.world_size > 1:
        whole = self.save_freq == "epoch"
        epochs = int(self._current_epoch)
        notes.say_saved(self.backup_dir, epochs=epochs, resumes=True, data=whole and not _fit.continues)


def tell_saved(path: str | os.PathLike[str]) -> None:
    """Notifies the launcher of weights that were saved after an epoch, and that the same command restores."""
    if context.is_chief:
        notes.say_saved(path, resumes=True, data=not _fit.continues)
