"""Tests of Keras 3 callbacks that write or delete files, on two workers; worker 0 writes."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

if not getattr(tf.keras, "__version__", "2").startswith("3"):
    pytest.skip("the callbacks are those of Keras 3", allow_module_level=True)

BATCHES, ROWS_OF_ALL, EPOCHS = 8, 8, 5


class Interrupted(Exception):
    pass


class Stops(tf.keras.callbacks.Callback):
    """A callback that ends a training like a crash, after an epoch and a batch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and self.model.stops_in == self.epoch:
            raise Interrupted

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch


def model_of(seed, table=embedding_scope, optimizer="adam"):
    keras = tf.keras
    keras.utils.set_random_seed(seed)
    ids = keras.Input([], dtype="int64")
    with table():
        rows = keras.layers.Embedding(11, 3, name="items")(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.BatchNormalization()(rows)))
    model.compile(optimizer, "mse")
    model.stops_in = None
    return model


def fit(model, callbacks, epochs=EPOCHS, rank=None, ranks=None):
    """Trains on this worker's rows of each batch, by default; all workers' rows together are one process's batch."""
    rank, ranks = (context.rank, context.world_size) if rank is None else (rank, ranks)
    ids = np.random.default_rng(0).integers(0, 11, BATCHES * ROWS_OF_ALL)
    size = ROWS_OF_ALL // ranks
    x = ids.reshape(-1, ranks, size)[:, rank].ravel()
    y = (x % 3).astype(np.float32)
    return model.fit(x, y, batch_size=size, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


def state_of(model):
    return [np.asarray(v) for v in (*model.weights, *model.optimizer.variables)]


@contextlib.contextmanager
def changes_of_files(below):
    """Lists the files below a folder that Python code of this process creates, changes or deletes in the block."""
    changed, watching = [], [True]

    def hook(event, args):
        if not watching or not args or not isinstance(args[0], (str, bytes)):
            return
        path = os.path.abspath(os.fsdecode(args[0]))
        writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
        if path.startswith(below) and (writes or event in ("os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")):
            changed.append((event, path))

    sys.addaudithook(hook)
    try:
        yield changed
    finally:
        watching.clear()


def stand_in_for_tensorboard():
    """Replaces the package `tensorboard`, which may be missing, by functions that write their arguments."""

    def write(name, data, step=None, **_):
        # Like the package's functions, they compute the data only if there is a writer.
        return tf.summary.write(name, lambda: tf.convert_to_tensor(data), step)

    v2 = types.ModuleType("tensorboard.summary.v2")
    v2.scalar = v2.histogram = v2.image = write
    for name in ("tensorboard", "tensorboard.summary"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[v2.__name__] = v2


def write_all(folder):
    """Trains twice with all callbacks that write. Returns this worker's changes of files, and its event files."""
    stand_in_for_tensorboard()
    keras = tf.keras
    model = model_of(1)
    with changes_of_files(folder) as changed:
        for _ in range(2):
            callbacks = [
                keras.callbacks.BackupAndRestore(f"{folder}/backup", double_checkpoint=True),
                keras.callbacks.ModelCheckpoint(f"{folder}/by_epoch/{{epoch}}/model.keras"),
                # Each worker has its own values of batches; here they improve on one worker only.
                keras.callbacks.ModelCheckpoint(
                    f"{folder}/by_batch/{{batch}}/best.weights.h5", "loss", 0, True, True, save_freq=11
                ),
                keras.callbacks.CSVLogger(f"{folder}/log.csv", append=True),
                keras.callbacks.TensorBoard(f"{folder}/board", histogram_freq=1, write_images=True, update_freq=2),
            ]
            fit(model, callbacks, epochs=2)
    events = [name for _, _, names in os.walk(f"{folder}/board") for name in names]
    return changed, [name for name in events if f".{os.getpid()}." in name], len(events), state_of(model)


def resume(folder):
    """Trains without and with one interruption. Returns both states, and the epochs of the second training."""
    whole = model_of(1)
    fit(whole, [])
    first = model_of(1)
    first.stops_in = 3
    backup = f"{folder}/resumed"
    with pytest.raises(Interrupted):
        fit(first, [tf.keras.callbacks.BackupAndRestore(backup), Stops()])
    left = sorted(os.listdir(backup))
    second = model_of(7)
    epochs = fit(second, [tf.keras.callbacks.BackupAndRestore(backup)]).epoch
    return state_of(whole), state_of(second), epochs, left, os.path.exists(backup)


def fail(folder):
    """Returns the errors if a worker cannot read the saved files, or lacks a callback."""
    keras, texts = tf.keras, {}
    backup = f"{folder}/here/backup"
    model = model_of(1)
    model.stops_in = 1
    with pytest.raises(Interrupted):
        fit(model, [keras.callbacks.BackupAndRestore(backup), Stops()])
    # Worker 1 sees another folder under the same name.
    os.makedirs(f"{folder}/elsewhere", exist_ok=True)
    os.chdir(f"{folder}/{'elsewhere' if context.rank else 'here'}")
    orbax = keras.callbacks.OrbaxCheckpoint.__new__(keras.callbacks.OrbaxCheckpoint)
    cases = {
        "unseen": [keras.callbacks.BackupAndRestore("backup")],
        "missing": [] if context.rank else [keras.callbacks.ModelCheckpoint("file.keras")],
        "orbax": [orbax],
        "no folder": [keras.callbacks.BackupAndRestore("/proc/none")],
    }
    for name, callbacks in cases.items():
        with pytest.raises(Exception) as raised:
            fit(model_of(1), callbacks, epochs=1)
        texts[name] = f"{raised.type.__name__}: {raised.value}"
    # Some programs give the loggers to worker 0 only.
    fit(model_of(1), [] if context.rank else [keras.callbacks.CSVLogger(f"{folder}/by_hand.csv")], epochs=1)
    return texts


def averages(folder, rank=None, ranks=None):
    """Returns final weights and saved averages of a worker of a job, or of `rank` of `ranks` in plain Keras."""
    keras = tf.keras
    model = model_of(1, contextlib.nullcontext, keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8))
    saving = keras.callbacks.ModelCheckpoint(f"{folder}/averaged-{{epoch}}.weights.h5", save_weights_only=True)
    fit(model, [keras.callbacks.SwapEMAWeights(swap_on_epoch=True), saving], 3, rank, ranks)
    saved = model_of(2, contextlib.nullcontext)
    saved.load_weights(f"{folder}/averaged-2.weights.h5", skip_mismatch=True)
    return model.get_weights(), saved.get_weights()


def on_worker(folder):
    with scope():
        return {part.__name__: part(f"{folder}") for part in (write_all, resume, fail, averages)}


@functools.cache
def outcomes(folder):
    return folder, call_workers(on_worker, 2, folder, timeout_s=400)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return outcomes(str(tmp_path_factory.mktemp("callbacks")))


# Promise (hybridbackend.md): worker 0 does (HybridBackend: workers write and delete one file of Keras' callbacks).
def test_worker_0_alone_writes_and_deletes(job):
    folder, (first, second) = job
    changed, events, all_events, state = first["write_all"]
    assert second["write_all"][:2] == ([], []), "worker 1 wrote"
    assert changed and len(events) == all_events > 0
    assert not os.path.exists(f"{folder}/backup")
    assert sorted(os.listdir(f"{folder}/by_epoch")) == ["1", "2"] and os.listdir(f"{folder}/by_batch")
    with open(f"{folder}/log.csv", newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1", "0", "1"]
    for got, wanted in zip(second["write_all"][-1], state, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_what_was_saved_is_that_of_the_job_and_opens_in_plain_keras(job):
    folder, (first, _) = job
    saved = tf.keras.models.load_model(f"{folder}/by_epoch/2/model.keras")
    for got, wanted in zip(saved.weights, first["write_all"][-1], strict=False):
        np.testing.assert_array_equal(got, wanted)


# Promise (hybridbackend.md): worker 0 does (HybridBackend: workers write and delete one file of Keras' callbacks).
def test_an_interrupted_training_ends_as_one_left_alone(job):
    _, workers = job
    for outcome in workers:
        whole, resumed, epochs, left, still_there = outcome["resume"]
        assert left == ["latest.weights.h5", "training_metadata.json"] and not still_there
        assert epochs == [3, 4]
        for got, wanted, of_first in zip(resumed, whole, workers[0]["resume"][1], strict=True):
            np.testing.assert_array_equal(got, wanted)
            np.testing.assert_array_equal(got, of_first)


def test_all_workers_fail_together_and_say_which_one_did(job):
    folder, (first, second) = job
    for texts in (first["fail"], second["fail"]):
        assert "ModelCheckpoint" in texts["missing"] and "give the same ones to all workers" in texts["missing"]
        assert texts["orbax"].startswith("NotImplementedError: fit: OrbaxCheckpoint")
        assert "/proc/none" in texts["no folder"]
    assert first["fail"]["unseen"].startswith("OSError: load_weights: worker 1 failed: FileNotFoundError")
    assert second["fail"]["unseen"].startswith("FileNotFoundError")
    assert os.path.exists(f"{folder}/by_hand.csv")


def test_averages_of_weights_are_saved_as_plain_keras_saves_them(job, tmp_path):
    _, workers = job
    (expected,) = call_workers(averages, 1, str(tmp_path), 0, 1, timeout_s=200)
    for outcome in workers:
        for got, wanted in zip(outcome["averages"], expected, strict=True):
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-6)
