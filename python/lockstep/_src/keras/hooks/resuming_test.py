"""Where data begins when `fit` resumes, on one worker and on two: warnings, and the notes to the launcher."""

# Promise of this file (launching.md): the last lines name the last complete checkpoint.
# Promise of this file (launching.md): data that begins with its first batch is reported, in sessions and Keras.

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import scope
from lockstep.launch.base import notes
from lockstep.testing.workers import call_workers
from tests.multiprocess.on_each_worker import logged

pytestmark = pytest.mark.workers

if not getattr(tf.keras, "__version__", "2").startswith("3"):
    pytest.skip("the callbacks are those of Keras 3", allow_module_level=True)

BATCHES, BATCH = 6, 4


class Interrupted(Exception):
    pass


class Trains(tf.keras.callbacks.Callback):
    """A callback that keeps the epochs and the first values of their batches, and may end a training like a crash."""

    def __init__(self, stops_at=None):
        super().__init__()
        self.stops_at, self.epochs = stops_at, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append(epoch)

    def on_train_batch_end(self, batch, logs=None):
        if (self.epochs[-1], batch) == self.stops_at:
            raise Interrupted


def model_of(kind=tf.keras.Sequential):
    inputs = tf.keras.Input([2])
    model = kind(inputs=inputs, outputs=tf.keras.layers.Dense(1)(inputs)) if kind is not tf.keras.Sequential else None
    model = model or tf.keras.Sequential([inputs, tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def data():
    x = np.random.default_rng(context.rank).random([BATCHES * BATCH, 2]).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(BATCH).repeat()


def backup(folder, save_freq, stops_at, **arguments):
    """Interrupts a training with a backup, and resumes it. Returns the warnings, the epochs, and the notes."""
    told = []
    notes.say = told.append
    found = []
    finite = {} if arguments else {"steps_per_epoch": None}
    for stop in (stops_at, None):
        callbacks = [tf.keras.callbacks.BackupAndRestore(f"{folder}/backup", save_freq=save_freq), Trains(stop)]
        batches = data() if arguments else data().take(BATCHES)
        with scope(), logged("first batch") as said, contextlib.suppress(Interrupted):
            model_of().fit(batches, epochs=4, verbose=0, callbacks=callbacks, **{**finite, **arguments})
        found.append((said, callbacks[1].epochs))
    return found, [note for note in told if note["is"] == "saved" and note["path"] == f"{folder}/backup"]


def between_epochs(folder):
    return backup(folder, "epoch", (2, 1))


def within_an_epoch(folder):
    return backup(folder, 4, (2, 5))


def over_epochs(folder):
    return backup(folder, "epoch", (2, 1), steps_per_epoch=4)


def by_the_model(folder):
    """Does the same by `checkpoint_dir` of this library's model, which saves after each epoch."""
    from lockstep._src.keras.models.model import Model

    told = []
    notes.say = told.append
    found = []
    for _ in range(2):
        with scope(), logged("first batch") as said:
            model = model_of(Model)
            model.fit(data(), epochs=1, verbose=0, steps_per_epoch=4, checkpoint_dir=f"{folder}/weights")
            model.evaluate(data(), verbose=0, steps=2, checkpoint_dir=f"{folder}/weights")
            model.fit(data(), epochs=1, verbose=0, steps_per_epoch=4)
        found.append((said, []))
    return found, [note for note in told if note["is"] == "saved"]


@pytest.fixture(name="run", params=[1, 2], ids=["one worker", "two workers"])
def _run(request, tmp_path):
    def run(function):
        return call_workers(function, request.param, str(tmp_path), timeout_s=100)

    return run


def _warnings(outcomes):
    """Returns the warnings of worker 0 in the first and in the second training; the other worker must have none."""
    for found, told in outcomes[1:]:
        assert (told, [said for said, _ in found]) == ([], [[], []])
    (first, _), (second, _) = outcomes[0][0]
    assert first == []
    return second


def test_an_epoch_begins_with_its_first_batch_so_there_is_no_warning_between_epochs(run, tmp_path):
    outcomes = run(between_epochs)
    assert _warnings(outcomes) == []
    assert all(found[1][1] == [2, 3] for found, _ in outcomes)
    told = outcomes[0][1]
    assert [note["epochs"] for note in told] == ([1, 2, 3, 4] if len(outcomes) > 1 else [])
    for note in told:
        assert (note["file"], note["resumes"], note["data"]) == (f"{tmp_path}/backup", True, True)
    assert not os.path.exists(f"{tmp_path}/backup")


def test_a_backup_within_an_epoch_begins_its_data_again_with_a_warning(run, tmp_path):
    outcomes = run(within_an_epoch)
    (said,) = _warnings(outcomes)
    assert said == (
        f"{tmp_path}/backup has weights from the middle of epoch 3 but no position in the data; the epoch's data "
        "begins with its first batch"
    )
    assert all(found[1][1] == [2, 3] for found, _ in outcomes)
    assert all(not note["data"] for note in outcomes[0][1])


def test_data_that_continues_from_epoch_to_epoch_begins_again_with_a_warning(run, tmp_path):
    outcomes = run(over_epochs)
    (said,) = _warnings(outcomes)
    assert said.startswith(f"{tmp_path}/backup has weights but no position in the data. With steps_per_epoch=4 ")
    assert all(not note["data"] for note in outcomes[0][1])


def test_the_weights_of_our_model_are_told_as_those_that_the_same_command_restores(run, tmp_path):
    outcomes = run(by_the_model)
    (said,) = _warnings(outcomes)
    assert said.startswith(f"{tmp_path}/weights/epoch-000001.weights.h5 has weights but no position in the data")
    last = {note["path"]: (note["resumes"], note["data"]) for note in outcomes[0][1]}
    assert last == {f"{tmp_path}/weights/epoch-00000{i}.weights.h5": (True, False) for i in (1, 2)}
