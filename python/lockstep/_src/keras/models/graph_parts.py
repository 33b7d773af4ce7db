"""The settings, callbacks, loaded weights and results of a model of `graph_model.py`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.collectives import agreement
from lockstep._src.collectives.slices import with_unique_rows
from lockstep._src.engine import progress
from lockstep._src.engine.context import context
from lockstep._src.keras.models.passes import Loss
from lockstep._src.tables import sharded

_tf1 = tf.compat.v1
_log = logging.getLogger("lockstep")


@dataclasses.dataclass
class History:
    """The result of `fit`, as in Keras: the values of each epoch.

    Attributes:
      history: name -> values, one per epoch; names of validation begin with 'val_'.
      epoch: the numbers of the epochs.
    """

    history: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    epoch: list[int] = dataclasses.field(default_factory=list)

    def append(self, epoch: int, values: dict[str, float]) -> None:
        """Adds an epoch's values."""
        self.epoch.append(epoch)
        for name, value in values.items():
            self.history.setdefault(name, []).append(value)


@dataclasses.dataclass
class Compiled:
    """The arguments of `compile`."""

    optimizer: Any
    loss: Loss
    metrics: list[Any]
    target: Any
    clipnorm: float | None
    clipvalue: float | None

    def clipped(self, gradients: Sequence[tuple[Any, tf.Variable]]) -> list[tuple[Any, tf.Variable]]:
        """Returns the gradients, clipped to the bounds. The slices of a row count as their sum."""
        if self.clipnorm is None and self.clipvalue is None:
            return list(gradients)
        return [(None if g is None else self._clipped(g), variable) for g, variable in gradients]

    def _clipped(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            gradient = with_unique_rows(gradient)
        if self.clipnorm is not None:
            gradient = tf.clip_by_norm(gradient, self.clipnorm)
        if self.clipvalue is not None:
            gradient = tf.clip_by_value(gradient, -self.clipvalue, self.clipvalue)
        return gradient


class Best:
    """The best value of an epoch so far."""

    def __init__(self, monitor: str, mode: str) -> None:
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"fit: mode is {mode!r}, wanted 'auto', 'min' or 'max'")
        more = mode == "max" or (mode == "auto" and ("acc" in monitor or "auc" in monitor))
        self._monitor, self._sign, self._value = monitor, 1 if more else -1, -np.inf

    def improves(self, values: dict[str, float]) -> bool:
        """Returns whether an epoch was better than all before it; also True if its value is not known."""
        if self._monitor not in values:
            _log.warning("fit: monitor is %r, wanted one of %s; each epoch is saved", self._monitor, ", ".join(values))
            return True
        value = agreement.from_chief(self._sign * values[self._monitor], "monitored")
        better = value > self._value
        self._value = max(self._value, value)
        return better


# Callbacks of Keras, of any version: those that write logs, and those that save models.
_LOGGERS = ("CSVLogger", "TensorBoard")
_SAVERS = ("BackupAndRestore", "ModelCheckpoint")


class Callbacks:
    """Keras' callbacks of one `fit`. Callbacks that write logs are called on worker 0 only.

    Raises:
      NotImplementedError: a callback saves models of Keras.
    """

    def __init__(self, model: Any, callbacks: Sequence[Any], params: dict[str, Any]) -> None:
        for callback in callbacks:
            if _is_one_of(callback, _SAVERS):
                raise NotImplementedError(
                    f"fit: {type(callback).__name__} saves models of Keras, not models of a graph of TensorFlow 1; "
                    "use fit's checkpoint_dir, from which training continues, and save_best_only"
                )
        self._callbacks = [c for c in callbacks if context.is_chief or not _is_one_of(c, _LOGGERS)]
        model.stop_training = False
        for callback in self._callbacks:
            callback.set_params(params)
            callback.set_model(model)

    def tell(self, event: str, *args: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, event)(*args)

    def batch(self, number: int, results: dict[str, Any]) -> None:
        """Informs the callbacks about a step that has been made."""
        self.tell("on_train_batch_end", number, {"loss": results["loss"]})


def _is_one_of(callback: Any, names: Sequence[str]) -> bool:
    return any(cls.__name__ in names for cls in type(callback).__mro__)


def batches_of(x: Any, what: str, labelled: bool = True) -> tuple[tf.Operation, Any, Any]:
    """Returns an operation that restarts the data, and features and labels of a batch; ValueError for wrong data."""
    if not isinstance(x, (tf.data.Dataset, _tf1.data.Dataset)):
        raise ValueError(f"{what}: got {type(x).__name__} {x!r}, wanted a dataset of batches")
    iterator = _tf1.data.make_initializable_iterator(x)
    batch = iterator.get_next()
    if not isinstance(batch, tuple):
        batch = (batch,) if labelled else (batch, None)
    if len(batch) != 2 or (labelled and batch[1] is None):
        count = sum(part is not None for part in batch)
        raise ValueError(f"{what}: got {count} part(s) in a batch of the dataset, wanted 2: features and labels")
    return iterator.initializer, *batch


def no_data(what: str, history: History) -> Any:
    if not history.epoch:
        raise ValueError(f"{what}: the data has no batch on any worker")
    _log.warning("%s: the data has ended after %d epochs", what, len(history.epoch))


def report(what: str, values: dict[str, float]) -> None:
    if context.is_chief:
        progress.info("%s: %s", what, ", ".join(f"{name} = {value:.6g}" for name, value in values.items()))


def whole_shape(variable: tf.Variable) -> list[int]:
    shape = variable.shape.as_list()
    return [variable.shard.rows, *shape[1:]] if sharded.is_sharded(variable) else shape


def loading(path: str, name: str | None, skip: bool, variables: Sequence[tf.Variable]) -> Callable[..., None]:
    """Returns a scaffold's `init_fn` that restores the variables that the checkpoint has."""
    there = dict(tf.train.list_variables(path))
    wanted = [
        v for v in variables if v.op.name != _tf1.GraphKeys.GLOBAL_STEP and (name is None or v.op.name.startswith(name))
    ]
    found = [v for v in wanted if list(there.get(v.op.name, ())) == whole_shape(v) and v.op.name in there]
    missing = [v.op.name for v in wanted if not any(v is other for other in found)]
    if missing and not skip:
        raise ValueError(f"load_weights: {path!r} lacks {', '.join(missing)}, or has them in another shape")
    if missing:
        _log.warning("load_weights: %s lacks %s, or has them in another shape", path, ", ".join(missing))
    saver = _tf1.train.Saver(found, allow_empty=True)
    return lambda _, session: saver.restore(session, path)
