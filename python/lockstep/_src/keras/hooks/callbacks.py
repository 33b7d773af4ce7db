"""Callbacks of Keras 3 that write or delete files: only worker 0 does so, for the whole job.

Callbacks run on all workers, because subclasses may also do other things. Their files are replaced:

| callback | its files on workers other than 0 |
| --- | --- |
| `CSVLogger`, `TensorBoard` | none: writes are dropped, and no worker waits for another |
| `ModelCheckpoint`, `BackupAndRestore` | worker 0's files: it sends what it reads; all workers take part |
| `OrbaxCheckpoint` | not supported: Orbax writes for jobs of JAX only |

On one worker, too, the files of `ModelCheckpoint` and `BackupAndRestore` are replaced when the new ones are complete.

`model_files.py` saves models. This module imports Keras; a scope imports it if the program has Keras 3.
"""

from __future__ import annotations

import functools
import io
import os
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src import callbacks
from keras.src.callbacks.callback_list import CallbackList
from keras.src.utils import file_utils

from lockstep._src.collectives import agreement
from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around
from lockstep._src.keras.hooks import drafts, resuming
from lockstep._src.keras.hooks.variables import local_initial_values, sharded_variables, whole_on_chief

# Callbacks that need all workers: they save models, or read saved ones.
_SAVERS = (callbacks.BackupAndRestore, callbacks.ModelCheckpoint)


def intercept_callbacks(interception: Interception) -> None:
    """Makes only worker 0 write the files of Keras' callbacks, and warn of data that begins again after a restore."""
    interception.replace(symbols.RESTORE_BACKUP, around(resuming.restore_backup))
    interception.replace(symbols.SAVE_BACKUP, around(resuming.save_backup))
    for hook in symbols.SAVED_FILES:
        interception.replace(hook, lambda _: _FilesOfTheJob())
    if context.world_size == 1:
        return
    restoring = _Restoring()
    interception.replace(symbols.RESTORE_BACKUP, around(restoring.restore))
    interception.replace(symbols.LOAD_WEIGHTS, around(restoring.load_weights))
    interception.replace(symbols.SHOULD_SAVE, around(_should_save))
    interception.replace(symbols.TRAIN_BEGIN, around(_begin_training))
    interception.replace(symbols.LOG_WEIGHTS, around(_log_weights))
    if context.is_chief:
        return
    for hook in symbols.DROPPED_FILES:
        interception.replace(hook, lambda _: _NoFiles())
    for hook in symbols.SUMMARY_WRITERS:
        name = hook.name.removeprefix("_").removesuffix("_writer")
        interception.replace(hook, functools.partial(_without_file, name))
    interception.replace(symbols.START_PROFILER, lambda _: lambda self, logdir: None)


class _Files:
    """Keras' `file_utils`; subclasses replace its functions for files."""

    def __getattr__(self, name: str) -> Any:
        return getattr(file_utils, name)


class _NoFiles(_Files):
    """File functions for which no file exists; writes are dropped."""

    def exists(self, path: Any) -> bool:
        return False

    def File(self, path: Any, mode: str = "r") -> Any:  # noqa: N802  Keras' name
        return open(os.devnull, mode)


class _FilesOfTheJob(_Files):
    """Worker 0's files. All workers must call each method in the same order; a failure raises OSError on all."""

    def exists(self, path: Any) -> bool:
        return _by_chief(file_utils.exists, path)

    def copy(self, src: Any, dst: Any) -> None:
        _by_chief(_copy, dst, src)

    def makedirs(self, path: Any) -> None:
        _by_chief(file_utils.makedirs, path)

    def remove(self, path: Any) -> None:
        _by_chief(file_utils.remove, path)

    def rmtree(self, path: Any) -> None:
        _by_chief(file_utils.rmtree, path)

    def File(self, path: Any, mode: str = "r") -> Any:  # noqa: N802  Keras' name
        return io.StringIO(_by_chief(_read, path)) if mode == "r" else _Written(path, mode)


class _Written(io.StringIO):
    """A text file that worker 0 writes when it is closed."""

    def __init__(self, path: Any, mode: str) -> None:
        super().__init__()
        self._path, self._mode = path, mode

    def close(self) -> None:
        if not self.closed:
            text = self.getvalue()
            super().close()
            _by_chief(_write, self._path, self._mode, text)


def _read(path: Any) -> str:
    with file_utils.File(path, "r") as file:
        return file.read()


def _copy(dst: Any, src: Any) -> None:
    with drafts.replacing(os.fspath(dst)) as draft:
        file_utils.copy(src, draft)


def _write(path: Any, mode: str, text: str) -> None:
    if "a" in mode:
        with file_utils.File(path, mode) as file:
            file.write(text)
        return
    with drafts.replacing(os.fspath(path)) as draft, file_utils.File(draft, mode) as file:
        file.write(text)


def _by_chief(function: Callable[..., Any], *args: Any) -> Any:
    """Calls `function(*args)` on worker 0, and returns its result on every worker; JSON must be able to represent it.

    Raises:
      OSError: worker 0 failed.
    """
    name, result = function.__name__.strip("_"), []
    try:
        agreement.on_chief(lambda: result.append(function(*args)), f"{name} {os.fspath(args[0])!r}", f"files_{name}")
    except RuntimeError as error:
        # The error on worker 0 is an OSError, which callbacks catch.
        told = str(error)
        raise agreement.failed_on(0, "OSError", OSError(told)) if not context.is_chief else OSError(told) from None
    return agreement.from_chief(result and result[0], f"files_{name}_result")


class _Restoring(threading.local):
    """The restore of a `BackupAndRestore`: if one worker cannot load the weights, all workers raise an error."""

    inside = False

    def restore(self, restore: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Begins a training, for which saved weights are loaded."""
        self.inside = True
        try:
            restore(*args, **kwargs)
        finally:
            self.inside = False

    def load_weights(self, load: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Loads weights, which each worker reads itself."""
        if not self.inside:
            return load(model, filepath, *args, **kwargs)
        failure = None
        try:
            # Keras creates an optimizer to compare with; a worker that cannot read the file creates none.
            with local_initial_values():
                load(model, filepath, *args, **kwargs)
        except Exception as error:
            failure = error
        failures = agreement.gather_values(failure and f"{type(failure).__name__}: {failure}", "callback_loaded")
        for rank, text in enumerate(failures):
            if text is not None:
                raise failure or agreement.failed_on(rank, text, OSError(f"load_weights: worker {rank} failed: {text}"))


def _should_save(decide: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Returns whether a `ModelCheckpoint` saves: worker 0 decides, as each worker has its own batch."""
    return agreement.from_chief(bool(decide(*args, **kwargs)), "callback_saves")


def _begin_training(tell: Callable[..., Any], self: CallbackList, *args: Any, **kwargs: Any) -> None:
    """Informs all callbacks about the start of training, if all workers can run them."""
    # Early versions of Keras 3 do not have it.
    orbax = getattr(callbacks, "OrbaxCheckpoint", ())
    if any(isinstance(callback, orbax) for callback in self.callbacks):
        raise NotImplementedError(
            f"fit: OrbaxCheckpoint is not implemented for a job of {context.world_size} workers; use "
            "BackupAndRestore or ModelCheckpoint"
        )
    mine = sorted(type(callback).__name__ for callback in self.callbacks if isinstance(callback, _SAVERS))
    names_by_rank = agreement.gather_values(mine, "callbacks")
    for rank, names in enumerate(names_by_rank):
        if names != names_by_rank[0]:
            raise ValueError(
                f"fit: callbacks that save models are {names_by_rank[0] or 'none'} on rank 0 and {names or 'none'} "
                f"on rank {rank}; give the same ones to all workers, although only worker 0 writes the files"
            )
    tell(self, *args, **kwargs)


def _log_weights(log_weights: Callable[..., Any], self: Any, epoch: int) -> None:
    """Writes histograms of all weights: all workers gather whole tables for worker 0."""
    with whole_on_chief(sharded_variables(self.model.variables)):
        if context.is_chief:
            log_weights(self, epoch)


def _without_file(name: str, original: Any) -> property:
    del original
    return property(lambda self: self._writers.setdefault(name, tf.summary.create_noop_writer()))
