"""The elastic state of a Keras model, and callbacks that keep it."""

from __future__ import annotations

from typing import Any

from lockstep._src.compat.horovod.elastic.tensorflow_states import TensorFlowKerasState
from lockstep._src.compat.horovod.keras.base import Callback

# The value of a model's `stop_training` that ends a shorter epoch, but not training. For Keras, it is true like others.
# Callbacks that end training replace it by True.
_EPOCH_IS_DONE = "the epoch is done"


class KerasState(TensorFlowKerasState):
    """A model and its optimizer, and Python objects as attributes; see TensorFlowKerasState.

    Args:
      model: built.
      optimizer: the model's by default.
      **kwargs: the objects, such as batch=0 and epoch=0.
    """

    __module__ = "horovod._keras.elastic"

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any):
        super().__init__(model, optimizer=optimizer, **kwargs)


class CommitState:
    """Commits a state after batches, and after each epoch.

    Args:
      state: the state.
      batches_per_commit: the number of batches from one commit to the next.

    Raises:
      ValueError: `batches_per_commit` is not a whole number, or less than 1.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1):
        super().__init__()
        if batches_per_commit < 1 or batches_per_commit % 1:
            raise ValueError(f"batches_per_commit: got {batches_per_commit!r}, wanted a whole number, 1 or more")
        self.state, self.batches_per_commit = state, batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to count, on all ranks."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits, if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self.state.commit()


class UpdateBatchState(Callback):
    """Counts in `state.batch` the batches of the epoch that are done; 0 when the epoch ends.

    After a change of the job an epoch begins with `state.batch` above 0. It then ends so many batches earlier, if `fit`
    knows its number of steps. An epoch of Keras has at least one batch.

    Args:
      state: the state, with the attribute `batch`.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self._done_before = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes how many batches were done before."""
        self._done_before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the batch; ends the epoch when all of it is done."""
        self.state.batch = self._done_before + batch + 1
        steps = (self.params or {}).get("steps")
        if self._done_before and steps and self.state.batch >= steps and not self.model.stop_training:
            # Ends the epoch, and would end training with it; `on_epoch_end` takes that back.
            self.model.stop_training = _EPOCH_IS_DONE

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Resets the count, since the next epoch begins with its first batch."""
        self.state.batch = 0
        if self.model.stop_training is _EPOCH_IS_DONE:
            self.model.stop_training = False


class UpdateEpochState:
    """Counts in `state.epoch` the epochs that are done, including the ones before a change of the job.

    Args:
      state: the state, with the attribute `epoch`.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes the epoch from which `fit` counts."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch."""
        self.state.epoch = self.initial_epoch + epoch + 1
