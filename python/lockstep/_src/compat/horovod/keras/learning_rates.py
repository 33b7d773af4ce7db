"""Callbacks that set an optimizer's learning rate while a model trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import named_job
from lockstep._src.compat.horovod import job
from lockstep._src.compat.horovod.keras.base import KerasCallback
from lockstep._src.compat.horovod.keras.values import evaluate


class LearningRateSchedule(KerasCallback):
    """Sets the learning rate to `initial_lr * multiplier` from `start_epoch` until `end_epoch`.

    Args:
      initial_lr: a learning rate.
      multiplier: a function of the epoch, or a number, which stands for number ** (epoch - start_epoch).
      start_epoch: the first epoch in which it is set.
      end_epoch: the first in which it no longer is; None: there is none.
      staircase: set at the beginning of each epoch, whose number `multiplier` gets; otherwise before each batch, and
        `multiplier` gets epoch + batch / steps_per_epoch.
      momentum_correction: multiplies the accumulated momentum, if the optimizer has one, by new over old rate. Former
        steps then count as if they had been made with the new rate (Goyal et al., 2017).
      steps_per_epoch: needed if the data does not tell.

    Raises:
      ValueError: `initial_lr` is None; when training begins, steps per epoch are needed and not known, or the
        optimizer has a schedule of its own.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: float | None = None,
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
        self.steps_per_epoch: Any = steps_per_epoch  # without staircase, a number when training begins
        self.current_epoch = 0
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out how many steps an epoch has, if that is needed."""
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
                    f"{type(self).__name__}: the data has an unknown number of steps per epoch; pass steps_per_epoch"
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
        return float(evaluate(tf.convert_to_tensor(self.model.optimizer.learning_rate)))

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
      momentum_correction: as for `LearningRateScheduleCallback`.
      steps_per_epoch: needed if the data does not tell.
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
            size = job.ask(named_job.size)
            return (epoch * (size - 1) / warmup_epochs + 1) / size

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the learning rate, and prints a line when it is the initial one."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and job.rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._learning_rate():g}.")


def _own_rate(optimizer: Any) -> Any:
    """Returns an optimizer's learning rate: a variable, a number or a schedule."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    hyper = getattr(optimizer, "_hyper", None)  # of Keras 2, legacy
    return getattr(optimizer, "_learning_rate", None) if hyper is None else hyper.get("learning_rate")


def _momentum_buffers(model: Any) -> Iterable[Any]:
    """Returns the optimizer's sums over former steps that contain learning rates; none before the first step.

    The momentum itself is a number in a compiled step. Multiplying these sums has the effect of multiplying the
    momentum for one step.
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
