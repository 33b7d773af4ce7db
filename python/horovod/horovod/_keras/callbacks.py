"""Callbacks of Keras for jobs of several ranks, less the class `Callback`, which each generation of Keras has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod import _keras


class _Callback:
    """What callbacks are asked by Keras 2, answered for Keras 3's class as well."""

    _supports_tf_logs = False

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


def _plain(variable: Any) -> Any:
    """TensorFlow's variable."""
    return getattr(variable, "_value", variable)


def _optimizer_variables(optimizer: Any) -> list[Any]:
    """All of them; of a LossScaleOptimizer also the scale, which Keras 2 doesn't count among them."""
    variables = optimizer.variables
    scale = getattr(optimizer, "_loss_scale", None)
    scales = [scale._current_loss_scale, scale._counter] if hasattr(scale, "_current_loss_scale") else []
    return [*(variables() if callable(variables) else variables), *scales]


def _name_in_slots(variable: Any) -> str:
    """How the name of an optimizer's slot says of which variable it is."""
    return str(getattr(variable, "path", variable.name)).split(":")[0].replace("/", "_")


def _trained_by(optimizer: Any, model: Any) -> list[Any]:
    """The variables that an optimizer has slots for, in their order."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(optimizer, "_trainable_variables", None) or model.trainable_variables)


def _slots_of(local: Sequence[Any], trained: Sequence[Any], slots: Sequence[Any]) -> set[int]:
    """Ids of those of an optimizer's `slots` that belong to `local` variables; `trained` has all that have slots.

    Raises:
      ValueError: a local variable is called as another one is, and their slots cannot be told apart.
    """
    are_local: dict[str, list[bool]] = {}
    own = {id(_plain(v)) for v in local}
    for variable in trained:
        are_local.setdefault(_name_in_slots(variable), []).append(id(_plain(variable)) in own)
    found = set()
    alike: dict[tuple[str, str], list[Any]] = {}
    for slot in slots:
        # Keras 3: weight_slot; Keras 2: optimizer/slot/weight, or, of legacy ones, optimizer/weight/slot.
        words = f"_{_name_in_slots(slot)}_"
        # Of weights called alike but for an ending, the longer name.
        matches = [name for name in are_local if f"_{name}_" in words]
        if matches:
            alike.setdefault((max(matches, key=len), words), []).append(slot)
    # Slots of variables that are called alike are as well, and come in the order of those.
    for (name, _), slots_alike in alike.items():
        flags = are_local[name]
        if any(flags) and not all(flags) and len(slots_alike) != len(flags):
            raise ValueError(
                f"BroadcastGlobalVariablesCallback: {len(flags)} variables are called {name}, of which some are local, "
                f"and {len(slots_alike)} of the optimizer's are for them; give them names of their own"
            )
        found.update(id(slot) for i, slot in enumerate(slots_alike) if flags[i % len(flags)])
    return found


class BroadcastGlobalVariables(_Callback):
    """Gives weights and the optimizer's variables the values of one rank, behind the first batch.

    So that all ranks begin alike, with random weights or those of a checkpoint.

    Args:
      root_rank: whose values.
      device: where they are broadcast.
      local_variables: a variable or several, that keep their values on each rank, and so do the optimizer's slots for
        them.

    Raises:
      ValueError: a local variable is none.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None):
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        is_one = hasattr(local_variables, "assign")
        self._local: list[Any] = [local_variables] if is_one else list(local_variables or ())
        if not all(hasattr(v, "assign") for v in self._local):
            raise ValueError("All local variables must be of tf.Variable type.")

    def register_local_var(self, var: Any) -> None:
        """Has a variable, and the optimizer's slots for it, keep this rank's values."""
        self._local.append(var)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts behind the first batch, when optimizers have made their variables."""
        if self.broadcast_done:
            return
        with tf.device(self.device or None):
            if tf.executing_eagerly():
                self._broadcast()
            else:
                _keras.evaluate(hvd.broadcast_global_variables(self.root_rank))
        self.broadcast_done = True

    def _broadcast(self) -> None:
        local = {id(_plain(v)) for v in self._local}
        # Keras 3 counts seeds among `variables`, which are a rank's own.
        shared = [v for v in self.model.weights if id(_plain(v)) not in local]
        hvd.broadcast_variables([_plain(v) for v in shared], root_rank=self.root_rank)
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is None:
            return
        slots = _optimizer_variables(optimizer)
        own = _slots_of(self._local, _trained_by(optimizer, self.model), slots) if self._local else set()
        hvd.broadcast_variables([_plain(v) for v in slots if id(v) not in own], root_rank=self.root_rank)


class MetricAverage(_Callback):
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
        """Averages `logs` in place; ValueError on all ranks where they have different metrics."""
        if logs is None:
            return
        everyones = hvd.allgather_object({name: np.asarray(value) for name, value in logs.items()})
        for rank, theirs in enumerate(everyones):
            if theirs.keys() != everyones[0].keys():
                names = f"rank 0 has the metrics {sorted(everyones[0])}, rank {rank} {sorted(theirs)}"
                raise ValueError(f"MetricAverageCallback: {names}")
        for name in logs:
            mean = np.mean([theirs[name] for theirs in everyones], axis=0, dtype=np.float64)
            logs[name] = mean if mean.ndim else float(mean)


class LearningRateSchedule(_Callback):
    """Sets the learning rate to `initial_lr * multiplier` from `start_epoch` until `end_epoch`.

    Args:
      initial_lr: a learning rate.
      multiplier: a function of the epoch, or a number, which stands for number ** (epoch - start_epoch).
      start_epoch: the first epoch in which it is set.
      end_epoch: the first in which it no longer is; None: there is none.
      staircase: set at the beginning of each epoch, of which `multiplier` gets the number; otherwise before each
        batch, and it gets epoch + batch / steps_per_epoch.
      momentum_correction: where the optimizer has a momentum, what it has added up is multiplied by new over old rate,
        as if former steps had been made with the new one (Goyal et al., 2017).
      steps_per_epoch: needed where the data does not tell.

    Raises:
      ValueError: `initial_lr` is None; when training begins, steps per epoch are needed and not known, or the
        optimizer has a schedule of its own.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ):
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out how many steps an epoch has, where that is needed."""
        rate = _own_rate(self.model.optimizer)
        if callable(rate):
            raise ValueError(
                f"{type(self).__name__}: the optimizer's learning rate is {rate!r}, which cannot be set; give the "
                "optimizer a number"
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__}: the data does not say how many steps an epoch has, give steps_per_epoch"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate, if it is due."""
        end = float("inf") if self.end_epoch is None else self.end_epoch
        if not self.start_epoch <= self.current_epoch < end:
            return
        if not self.staircase:
            self._set(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the learning rate as `lr`."""
        if logs is not None:
            logs["lr"] = self._learning_rate()

    def _learning_rate(self) -> float:
        return float(_keras.evaluate(tf.convert_to_tensor(self.model.optimizer.learning_rate)))

    def _set(self, epoch: float) -> None:
        old, new = self._learning_rate(), self.initial_lr * self.multiplier(epoch)
        self.model.optimizer.learning_rate = new
        if self.momentum_correction and old > 0 and new != old:
            for buffer in _momentum_buffers(self.model):
                _scale(buffer, new / old)


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate from `initial_lr / hvd.size()` to `initial_lr` over the first epochs, batch by batch.

    After Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017).

    Args:
      initial_lr: the learning rate in the end.
      warmup_epochs: how many epochs that takes.
      momentum_correction: as of `LearningRateScheduleCallback`.
      steps_per_epoch: needed where the data does not tell.
      verbose: 1: rank 0 prints a line in the end.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ):
        def multiplier(epoch: float) -> float:
            # An epoch ends with a round number.
            epoch += 1 / self.steps_per_epoch
            return (epoch * (hvd.size() - 1) / warmup_epochs + 1) / hvd.size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the learning rate, and says when it is the initial one."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose > 0 and hvd.rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._learning_rate():g}.")


def _own_rate(optimizer: Any) -> Any:
    """What an optimizer has for its learning rate: a variable, a number or a schedule."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    hyper = getattr(optimizer, "_hyper", None)  # of Keras 2, legacy
    return getattr(optimizer, "_learning_rate", None) if hyper is None else hyper.get("learning_rate")


def _momentum_buffers(model: Any) -> Iterable[Any]:
    """What the optimizer adds up of former steps, in which learning rates are a factor; nothing before the first step.

    The momentum itself is a number in a compiled step. To multiply it for a step by a number is to multiply these.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not hasattr(optimizer, "momentum"):
        return ()
    if hasattr(optimizer, "get_slot"):  # of Keras 2, legacy
        if "momentum" not in optimizer.get_slot_names() or not optimizer.weights[1:]:
            return ()
        return [optimizer.get_slot(v, "momentum") for v in model.trainable_variables]
    found = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None)
    return [buffer for buffer in found or () if buffer is not None]


def _scale(buffer: Any, factor: float) -> None:
    if tf.executing_eagerly():
        buffer.assign(buffer * tf.cast(factor, buffer.dtype))
    else:
        backend = tf.compat.v1.keras.backend
        backend.set_value(buffer, backend.get_value(buffer) * factor)


class BestModelCheckpoint:
    """Saves the model when it is better than ever before; rank 0 does, whichever ranks have the callback.

    Args:
      filepath: where; may be set later, as the attribute `filepath`.
      save_weights_only: as of `ModelCheckpoint`.
      **options: likewise.

    Raises:
      ValueError: when training begins, there is no `filepath`.
    """

    def __init__(self, filepath: Any, save_weights_only: bool, **options: Any):
        # Keras looks at the ending of a name at once.
        unnamed = "unnamed.weights.h5" if save_weights_only else "unnamed.keras"
        super().__init__(
            filepath=unnamed if filepath is None else filepath,
            save_best_only=True,
            save_weights_only=save_weights_only,
            **options,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins; ValueError where `filepath` was not set."""
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: set `filepath`, where the best model is saved, before training")
        super().on_train_begin(logs)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        # Several ranks would write one file.
        if not hvd.is_initialized() or hvd.rank() == 0:
            super()._save_model(*args, **kwargs)
