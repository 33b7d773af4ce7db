"""`StatsCallback` writes the job's statistics, and changes nothing else."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep._src.sessions.stats_hook_test import scalars
from lockstep.keras import StatsCallback
from lockstep.testing import call_workers

ROWS, BATCH, PERIOD, EPOCHS = 60, 10, 4, 2


def train(folder, steps_per_execution):
    """Trains on a worker with the callback, or without if there is no folder; returns weights and counted steps."""
    rng = np.random.default_rng(7 + lockstep.rank())
    x, y = rng.random([ROWS, 3], np.float32), rng.random([ROWS, 1], np.float32)
    with lockstep.scope():
        model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(tf.keras.optimizers.SGD(0.1), "mse", steps_per_execution=steps_per_execution)
        before = lockstep.stats()
        callbacks = [StatsCallback(folder, every_n_steps=PERIOD, batch_size=BATCH)] if folder else []
        model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
        return [np.asarray(one) for one in model.get_weights()], lockstep.stats(before)["steps"]


@pytest.mark.parametrize(("size", "steps_per_execution"), [(1, 1), (2, 1), (2, 2)])
def test_worker_0_writes_the_values_of_all(size, steps_per_execution):
    with tempfile.TemporaryDirectory() as folder:
        results = call_workers(train, size, folder, steps_per_execution)
        found = scalars(folder)
    plain = call_workers(train, size, None, steps_per_execution)
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
    if size == 2:
        # Without the callback, the scope marks the steps.
        assert all(steps == ROWS // BATCH * EPOCHS for _, steps in plain)


def test_numbers_are_checked():
    with pytest.raises(ValueError, match="StatsCallback"):
        StatsCallback("folder", every_n_steps=0)
    with pytest.raises(ValueError, match="StatsCallback"):
        StatsCallback("folder", batch_size=0)
