"""Callbacks of Keras for jobs of several ranks: `horovod.keras.callbacks`."""

from __future__ import annotations

import keras

from horovod._keras import callbacks as _impl


class BroadcastGlobalVariablesCallback(_impl.BroadcastGlobalVariables, keras.callbacks.Callback):
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

    _keras = keras


class MetricAverageCallback(_impl.MetricAverage, keras.callbacks.Callback):
    """Averages metrics over all ranks at the end of an epoch.

    Put it before callbacks that look at metrics, such as ReduceLROnPlateau. Ranks that have different metrics get
    ValueError, with the names.

    Args:
      device: not needed.
    """

    _keras = keras


class LearningRateScheduleCallback(_impl.LearningRateSchedule, keras.callbacks.Callback):
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
      ValueError: `initial_lr` is None; when training begins, steps per epoch are needed and not known.
    """

    _keras = keras


class LearningRateWarmupCallback(_impl.LearningRateWarmup, keras.callbacks.Callback):
    """Raises the learning rate from `initial_lr / hvd.size()` to `initial_lr` over the first epochs, batch by batch.

    After Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017).

    Args:
      initial_lr: the learning rate in the end.
      warmup_epochs: how many epochs that takes.
      momentum_correction: as of `LearningRateScheduleCallback`.
      steps_per_epoch: needed where the data does not tell.
      verbose: 1: rank 0 prints a line in the end.
    """

    _keras = keras


class BestModelCheckpoint(_impl.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):
    """Saves the model when it is better than ever before. On rank 0, say: each rank that has it saves.

    Args:
      monitor: the metric.
      verbose: as of `ModelCheckpoint`, like all others.
      save_weights_only: likewise.
      mode: likewise.
      save_freq: likewise.
      filepath: where; may be set later, as the attribute `filepath`.

    Raises:
      ValueError: when training begins, there is no `filepath`.
    """
