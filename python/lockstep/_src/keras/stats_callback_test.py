"""`StatsCallback` writes the job's statistics, and changes nothing else."""

from __future__ import annotations

import contextlib
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow.keras as hvd
import lockstep
from lockstep._src.sessions.stats_hook_test import scalars
from lockstep.keras import StatsCallback
from lockstep.testing import call_workers

ROWS, BATCH, PERIOD, EPOCHS = 60, 10, 4, 2
# In a scope, several workers train models of Keras 3.
KERAS3 = int(getattr(tf.keras, "__version__", "2").partition(".")[0]) >= 3
JOBS = [("scope", 1, 1), ("horovod", 2, 1), *([("scope", 2, 1), ("scope", 2, 2)] if KERAS3 else [])]


def train(folder, kind, steps_per_execution):
    """Trains on a worker with the callback, or without it if the folder is None; returns weights and counted steps."""
    if kind == "horovod":
        hvd.init()
    rank = hvd.rank() if kind == "horovod" else lockstep.rank()
    rng = np.random.default_rng(7 + rank)
    x, y = rng.random([ROWS, 3], np.float32), rng.random([ROWS, 1], np.float32)
    with lockstep.scope() if kind == "scope" else contextlib.nullcontext():
        model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(1, kernel_initializer="ones")])
        optimizer = tf.keras.optimizers.SGD(0.1)
        if kind == "horovod":
            optimizer = hvd.DistributedOptimizer(optimizer)
        model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
        before = lockstep.stats()
        callbacks = [StatsCallback(folder, every_n_steps=PERIOD, batch_size=BATCH)] if folder else []
        model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
        return [np.asarray(one) for one in model.get_weights()], lockstep.stats(before)["steps"]


@pytest.mark.workers
@pytest.mark.parametrize(("kind", "size", "steps_per_execution"), JOBS)
def test_worker_0_writes_the_values_of_all(kind, size, steps_per_execution):
    with tempfile.TemporaryDirectory() as folder:
        results = call_workers(train, size, folder, kind, steps_per_execution)
        found = scalars(folder)
    plain = call_workers(train, size, None, kind, steps_per_execution)
    for (weights, steps), (without, _) in zip(results, plain, strict=True):
        for one, other in zip(weights, without, strict=True):
            np.testing.assert_array_equal(one, other)
        assert steps == ROWS // BATCH * EPOCHS
    assert [step for step, _ in found["lockstep/steps_per_second"]] == [4, 8, 12]
    for (_, steps_per_s), (_, examples_per_s) in zip(
        found["lockstep/steps_per_second"], found["lockstep/examples_per_second"], strict=True
    ):
        assert examples_per_s == pytest.approx(steps_per_s * BATCH * size, rel=1e-5)
    received = {tag for tag in found if tag.startswith("lockstep/rank_received_bytes_per_step/")}
    assert len(received) == size
    if (kind, size) == ("scope", 2):
        # Without the callback, the scope marks the steps.
        assert all(steps == ROWS // BATCH * EPOCHS for _, steps in plain)


def test_numbers_are_checked():
    with pytest.raises(ValueError, match="StatsCallback"):
        StatsCallback("folder", every_n_steps=0)
    with pytest.raises(ValueError, match="StatsCallback"):
        StatsCallback("folder", batch_size=0)
