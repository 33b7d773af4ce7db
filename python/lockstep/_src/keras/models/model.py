"""Models of Keras 3 that open the scope themselves, and save like HybridBackend's `hb.keras.Model`.

This module imports Keras. It needs eager execution of TensorFlow, and Keras 3.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.models import functional

from lockstep._src.collectives import agreement
from lockstep._src.engine.context import context
from lockstep._src.keras.hooks import resuming
from lockstep._src.keras.models.graph_parts import Best
from lockstep._src.scope import scope

_gfile = tf.io.gfile
_FILE = re.compile(r"epoch-(\d+)\.weights\.h5")


class Model(keras.Model):
    """A model of Keras 3, functional or a subclass, whose `fit`, `evaluate` and `predict` run on the whole job.

    Build it inside of a `scope`; build layers whose weights are to be sharded in an `embedding_scope`. The methods
    return the same as Keras' methods.
    """

    _restores = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Keras' own class does the same: a functional model has another class.
        is_functional = len(args) >= 2 or {"inputs", "outputs"} & kwargs.keys()
        return super().__new__(Functional if cls is Model and is_functional else cls, *args, **kwargs)

    def fit(
        self,
        *args: Any,
        checkpoint_dir: str | None = None,
        keep_checkpoint_max: int | None = None,
        monitor: str = "val_loss",
        save_best_only: bool = False,
        mode: str = "auto",
        **kwargs: Any,
    ) -> Any:
        """Trains on all workers.

        Args:
          *args: positional arguments of Keras' `fit`.
          checkpoint_dir: where weights are saved after each epoch, with the optimizer's; training continues from the
            latest ones there. None: nothing is saved.
          keep_checkpoint_max: how many are kept; None: 5.
          monitor: the value that decides whether an epoch was the best.
          save_best_only: saves only after epochs that were better than all before, and keeps one.
          mode: 'max' if a larger `monitor` is better, 'min' if a smaller one is; 'auto': according to its name.
          **kwargs: arguments of Keras' `fit`.

        Returns:
          Keras' History.
        """
        with scope(mode="train"):
            own = []
            if checkpoint_dir is not None:
                own += self._restoring(_latest(checkpoint_dir))
                keep = 1 if save_best_only else 5 if keep_checkpoint_max is None else keep_checkpoint_max
                own.append(_Saving(checkpoint_dir, keep, Best(monitor, mode) if save_best_only else None))
            return _call_with(own, super().fit, args, kwargs)

    def evaluate(self, *args: Any, checkpoint_dir: str | None = None, **kwargs: Any) -> Any:
        """Evaluates on the data of all workers, with the latest weights in `checkpoint_dir` if it is given."""
        with scope():
            return _call_with(self._restoring_from("evaluate", checkpoint_dir), super().evaluate, args, kwargs)

    def predict(self, *args: Any, checkpoint_dir: str | None = None, **kwargs: Any) -> Any:
        """Returns the outputs for this worker's data; all workers must call it together."""
        with scope():
            return _call_with(self._restoring_from("predict", checkpoint_dir), super().predict, args, kwargs)

    def _restoring_from(self, what: str, directory: Any) -> list[Any]:
        return [] if directory is None else self._restoring(_found(what, directory))

    def _restoring(self, path: str | None) -> list[Any]:
        """Returns the callback that loads weights, if there are any."""
        self._restores = path is not None
        return [] if path is None else [_Restoring(path)]

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Builds a model whose weights are to be restored; Keras calls it before callbacks begin."""
        if self._restores and not all(layer.built for layer in self._flatten_layers()):
            self._symbolic_build(iterator=iterator, data_batch=data_batch)

    def load_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Loads a file of Keras, or the latest one in a `checkpoint_dir`."""
        if _gfile.isdir(os.fspath(filepath)):
            filepath = _found("load_weights", filepath)
        return super().load_weights(filepath, *args, **kwargs)

    def export_saved_model(self, *args: Any, **kwargs: Any) -> None:
        """Raises NotImplementedError for models of Keras 3."""
        raise NotImplementedError(
            "export_saved_model: not implemented for models of Keras 3; call lockstep.keras.export(model, directory) "
            "on all workers, which writes a SavedModel with whole tables"
        )


class Functional(Model, functional.Functional):
    """A model made from its inputs and outputs. It is saved as a model of Keras' own class, which any Keras loads."""


Functional.__module__ = functional.Functional.__module__


class _Restoring(keras.callbacks.Callback):
    """A callback that loads weights when the model has been built, before it is used."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path: str | None = path

    def on_train_begin(self, logs: Any = None) -> None:
        if self._path is not None:
            resuming.note_restored(self._path)
            self._restore()

    def on_test_begin(self, logs: Any = None) -> None:
        self._restore()

    on_predict_begin = on_test_begin

    def _restore(self) -> None:
        # Only once, because a validation also begins within training.
        path, self._path = self._path, None
        if path is not None:
            self.model._restores = False
            optimizer = getattr(self.model, "optimizer", None)
            if optimizer is not None and not optimizer.built:  # Keras loads no slots before they exist
                optimizer.build(self.model.trainable_variables)
            self.model.load_weights(path)


class _Saving(keras.callbacks.Callback):
    """A callback that saves weights after epochs. All workers take part."""

    def __init__(self, directory: str, keep: int, best: Best | None) -> None:
        super().__init__()
        self._directory, self._keep, self._best = os.fspath(directory), keep, best

    def on_train_begin(self, logs: Any = None) -> None:
        if context.is_chief:
            _gfile.makedirs(self._directory)
            numbers = [int(found[1]) for name in _files(self._directory) if (found := _FILE.fullmatch(name))]
        self._number = agreement.from_chief(max(numbers, default=0) if context.is_chief else 0, "epochs_saved")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._best is not None and not self._best.improves(logs or {}):
            return
        self._number += 1
        path = os.path.join(self._directory, f"epoch-{self._number:06}.weights.h5")
        self.model.save_weights(path)
        resuming.tell_saved(path)
        if context.is_chief and self._keep:
            for name in _files(self._directory)[: -self._keep]:
                _gfile.remove(os.path.join(self._directory, name))


def _files(directory: Any) -> list[str]:
    """Returns the names of the saved weights, the latest one last."""
    directory = os.fspath(directory)
    return sorted(filter(_FILE.fullmatch, _gfile.listdir(directory))) if _gfile.isdir(directory) else []


def _latest(directory: Any) -> str | None:
    names = agreement.from_chief(_files(directory), "saved_weights")
    return os.path.join(os.fspath(directory), names[-1]) if names else None


def _found(what: str, directory: Any) -> str:
    latest = _latest(directory)
    if latest is None:
        raise ValueError(f"{what}: found no weights in {os.fspath(directory)!r}")
    return latest


def _call_with(own: list[Any], method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls a method of Keras with the caller's arguments, and with callbacks of this module before the caller's."""
    call = inspect.signature(method).bind(*args, **kwargs)
    if own:
        given = call.arguments.get("callbacks") or []
        if isinstance(given, keras.callbacks.CallbackList):
            raise NotImplementedError("callbacks is a CallbackList, wanted a list of callbacks with checkpoint_dir")
        call.arguments["callbacks"] = [*own, *(given if isinstance(given, (list, tuple)) else [given])]
    return method(*call.args, **call.kwargs)
