"""The elastic state of a Keras model, and callbacks for it, which each module of Horovod's makes those of its Keras."""

from __future__ import annotations

from typing import Any

from horovod.tensorflow.elastic import TensorFlowKerasState


class KerasState(TensorFlowKerasState):
    """A model and its optimizer, and Python objects as attributes; see TensorFlowKerasState.

    Args:
      model: built.
      optimizer: the model's by default.
      **kwargs: the objects, such as batch=0 and epoch=0.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any):
        super().__init__(model, optimizer=optimizer, **kwargs)


class CommitStateCallbackImpl:
    """Commits a state after batches, and after each epoch.

    Args:
      state: the state.
      batches_per_commit: after so many.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1):
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit: got {batches_per_commit}, wanted 1 or more")
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


class UpdateBatchStateCallbackImpl:
    """Keeps in `state.batch` how many batches of the epoch are done; 0 at its end.

    An epoch that begins where `state.batch` is not 0, after a change of the job, ends so many batches earlier, where
    `fit` knows its number of steps.

    Args:
      state: the state, with the attribute `batch`.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self._done_before = 0
        self._ends_early = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """The batches that were done before count."""
        self._done_before, self._ends_early = self.state.batch, False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts; ends the epoch when all of it is done."""
        self.state.batch = self._done_before + batch + 1
        steps = (self.params or {}).get("steps")
        if self._done_before and steps and self.state.batch >= steps and not self.model.stop_training:
            # Ends the epoch, and at its end training would: see there.
            self.model.stop_training = self._ends_early = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The next epoch begins with its first batch."""
        self.state.batch = 0
        if self._ends_early:
            self.model.stop_training = self._ends_early = False


class UpdateEpochStateCallbackImpl:
    """Keeps in `state.epoch` how many epochs are done, those before a change of the job among them.

    Args:
      state: the state, with the attribute `epoch`.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Epochs of `fit` count from here."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """One more is done."""
        self.state.epoch = self.initial_epoch + epoch + 1
