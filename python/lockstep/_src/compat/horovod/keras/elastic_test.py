"""Elastic states of Keras models, and the callbacks that keep them, in `fit` of Keras on one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.horovod.keras.elastic import CommitState, KerasState, UpdateBatchState, UpdateEpochState

STEPS = 4


class Recorded:
    """A state that records its counts at each commit."""

    def __init__(self, batch=0, epoch=0):
        self.batch, self.epoch, self.commits = batch, epoch, []

    def commit(self):
        self.commits.append((self.epoch, self.batch))


class CommitStateCallback(CommitState, keras.callbacks.Callback):
    """As a class of Keras."""


class UpdateBatchStateCallback(UpdateBatchState, keras.callbacks.Callback):
    """As a class of Keras."""


class UpdateEpochStateCallback(UpdateEpochState, keras.callbacks.Callback):
    """As a class of Keras."""


class Watch(keras.callbacks.Callback):
    """Records the counts after each batch, and calls functions at a batch or at an epoch's end.

    Args:
      state: the state, with the counts.
      at_batch: a function of this callback, called after each batch.
      at_epoch: the same, called after each epoch.
    """

    def __init__(self, state, at_batch=lambda watch: None, at_epoch=lambda watch: None):
        super().__init__()
        self.state, self.at_batch, self.at_epoch = state, at_batch, at_epoch
        self.batches, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append((self.state.epoch, self.state.batch))
        self.at_batch(self)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append((self.state.epoch, self.state.batch))
        self.at_epoch(self)


def stop(watch):
    """Ends training, as EarlyStopping does."""
    watch.model.stop_training = True


def interrupt(watch):
    """Ends training with an error, as a change of the job does."""
    raise InterruptedError


@pytest.fixture(name="model", scope="module")
def _model():
    model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    return model


@pytest.fixture(name="fit", scope="module")
def _fit(model):
    """Returns a function that trains for some epochs of `STEPS` batches with callbacks."""
    x = np.ones([STEPS, 1], np.float32)

    def fit(epochs, *callbacks):
        model.fit(x, x, batch_size=1, epochs=epochs, callbacks=list(callbacks), verbose=0)

    return fit


@pytest.mark.parametrize(
    ("batches_per_commit", "wanted"),
    [
        (1, [(0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0)]),
        (3, [(0, 3), (1, 0), (1, 2), (2, 0)]),
        (100, [(1, 0), (2, 0)]),
    ],
)
def test_commits_come_after_so_many_batches_and_after_each_epoch(fit, batches_per_commit, wanted):
    state = Recorded()
    commits = CommitStateCallback(state, batches_per_commit)
    fit(2, UpdateBatchStateCallback(state), UpdateEpochStateCallback(state), commits)
    assert state.commits == wanted


def test_another_fit_counts_batches_to_the_next_commit_anew(fit):
    state = Recorded()
    callbacks = [UpdateBatchStateCallback(state), CommitStateCallback(state, 3)]
    with pytest.raises(InterruptedError):
        fit(1, *callbacks, Watch(state, lambda watch: state.batch == 2 and interrupt(watch)))
    assert state.commits == []
    state.batch = 0
    fit(1, *callbacks)
    assert state.commits == [(0, 3), (0, 0)]


@pytest.mark.parametrize("batches", [0, -1, 1.5])
def test_another_number_of_batches_is_refused(batches):
    with pytest.raises(ValueError, match=f"batches_per_commit: got {batches}, wanted a whole number, 1 or more"):
        CommitState(Recorded(), batches)


def test_batches_and_epochs_are_counted(fit):
    state = Recorded()
    watch = Watch(state)
    fit(2, UpdateBatchStateCallback(state), UpdateEpochStateCallback(state), watch)
    assert watch.batches == [(epoch, batch) for epoch in range(2) for batch in range(1, STEPS + 1)]
    assert watch.epochs == [(1, 0), (2, 0)]
    # Epochs of another `fit` follow.
    fit(1, UpdateBatchStateCallback(state), UpdateEpochStateCallback(state), watch)
    assert watch.epochs[2:] == [(3, 0)]


def test_an_epoch_that_had_begun_before_ends_after_its_remaining_batches(fit):
    state = Recorded(batch=3, epoch=5)
    watch = Watch(state)
    fit(2, UpdateBatchStateCallback(state), UpdateEpochStateCallback(state), watch)
    assert watch.batches == [(5, 4), (6, 1), (6, 2), (6, 3), (6, 4)]
    assert watch.epochs == [(6, 0), (7, 0)]


def test_an_interrupted_fit_resumes_where_it_was(fit):
    state = Recorded()
    callbacks = [UpdateBatchStateCallback(state), UpdateEpochStateCallback(state)]
    watch = Watch(state, lambda watch: len(watch.batches) in (2, 5) and interrupt(watch))
    for _ in range(2):
        with pytest.raises(InterruptedError):
            fit(3 - state.epoch, *callbacks, watch)
    fit(3 - state.epoch, *callbacks, watch)
    assert watch.batches == [(epoch, batch) for epoch in range(3) for batch in range(1, STEPS + 1)]
    assert (state.epoch, state.batch) == (3, 0)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("where", ["at_batch", "at_epoch"])
def test_other_callbacks_may_end_training_with_an_epoch_that_had_begun_before(fit, first, where):
    state = Recorded(batch=2)
    callbacks = [UpdateBatchStateCallback(state), UpdateEpochStateCallback(state)]
    watch = Watch(state, **{where: lambda watch: len(watch.batches) == 2 and stop(watch)})
    callbacks.insert(0 if first else 2, watch)
    fit(3, *callbacks)
    assert len(watch.batches) == 2
    assert (state.epoch, state.batch) == (1, 0)


def test_an_epoch_has_at_least_one_batch(fit):
    """The last batch was committed, or the epoch of a larger job is shorter."""
    for done in (STEPS, 2 * STEPS):
        state = Recorded(batch=done)
        watch = Watch(state)
        fit(2, UpdateBatchStateCallback(state), UpdateEpochStateCallback(state), watch)
        assert watch.batches == [(0, done + 1), *((1, batch) for batch in range(1, STEPS + 1))]
        assert watch.epochs == [(1, 0), (2, 0)]


def test_an_epoch_of_unknown_length_is_not_shortened(model):
    rows = tf.data.Dataset.from_tensors((np.ones([1, 1], np.float32),) * 2).repeat(STEPS).filter(lambda *_: True)
    state = Recorded(batch=3)
    watch = Watch(state)
    model.fit(rows, epochs=1, callbacks=[UpdateBatchStateCallback(state), watch], verbose=0)
    assert watch.batches == [(0, 4), (0, 5), (0, 6), (0, 7)]
    assert watch.epochs == [(0, 0)]


def test_the_state_of_a_model_has_its_optimizer_and_objects():
    assert KerasState.__module__ == "horovod._keras.elastic"
    model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    state = KerasState(model, batch=3, seen=[1])
    assert (state.model, state.optimizer) == (model, model.optimizer)
    before = model.get_weights()
    model.fit(np.ones([2, 1]), np.zeros([2, 1]), batch_size=1, verbose=0)
    state.batch += 1
    state.seen.append(2)
    assert int(tf.convert_to_tensor(model.optimizer.iterations)) == 2
    state.restore()
    for weight, wanted in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, wanted)
    assert int(tf.convert_to_tensor(model.optimizer.iterations)) == 0
    assert (state.batch, state.seen) == (3, [1])
    own = keras.optimizers.Adam()
    assert KerasState(model, own).optimizer is own
    with pytest.raises(ValueError, match="Model must be built first"):
        KerasState(keras.Sequential([keras.layers.Dense(1)]))
