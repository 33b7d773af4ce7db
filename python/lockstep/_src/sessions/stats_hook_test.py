"""`StatsHook` writes the job's statistics, and changes nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep._src.sessions.stats_hook import StatsHook
from lockstep.testing import call_workers

tf1 = tf.compat.v1
STEPS, PERIOD, BATCH, ROWS, DIM = 7, 3, 32, 40, 4


def ids_of(rank, step):
    return np.random.default_rng([rank, step]).integers(0, ROWS, BATCH)


def scalars(folder):
    """Returns {tag: [(step, value)]} of the event files in a folder, read by TensorFlow."""
    found = {}
    for path in sorted(Path(folder).glob("events*")):
        for event in tf1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                number = value.simple_value if value.HasField("simple_value") else float(tf.make_ndarray(value.tensor))
                found.setdefault(value.tag, []).append((event.step, number))
    return found


def train(folder):
    """Trains on a worker with the hook, or without a folder without it; returns the table."""
    rank = lockstep.rank()
    with tf.Graph().as_default(), lockstep.scope():
        with lockstep.embedding_scope():
            table = tf1.get_variable("user", initializer=np.ones([ROWS, DIM], np.float32))
        ids = tf1.placeholder(tf.int64, [None])
        loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, ids)))
        train_op = tf1.train.AdagradOptimizer(0.1).minimize(loss, tf1.train.get_or_create_global_step())
        hooks = [StatsHook(folder, every_n_steps=PERIOD, count=tf.size(ids))] if folder else []
        with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
            before = lockstep.stats()
            for step in range(STEPS):
                session.run(train_op, {ids: ids_of(rank, step)})
            steps = lockstep.stats(before)["steps"]
            return session.run_step_fn(lambda step_context: step_context.session.run(table)), steps


@pytest.mark.workers
@pytest.mark.parametrize("size", [1, 2])
def test_worker_0_writes_the_values_of_all(size):
    with tempfile.TemporaryDirectory() as folder:
        results = call_workers(train, size, folder)
        found = scalars(folder)
    plain = call_workers(train, size, None)
    for (table, steps), (without, _) in zip(results, plain, strict=True):
        np.testing.assert_array_equal(table, without)
        assert steps == STEPS  # the scope's own marks count once
    assert [step for step, _ in found["lockstep/steps_per_second"]] == [3, 6]
    for (_, steps_per_s), (_, examples_per_s) in zip(
        found["lockstep/steps_per_second"], found["lockstep/examples_per_second"], strict=True
    ):
        assert examples_per_s == pytest.approx(steps_per_s * BATCH * size, rel=1e-5)
    assert [value for _, value in found["lockstep/table_rows/user"]] == [ROWS, ROWS]
    assert [value for _, value in found["lockstep/table_bytes/user"]] == [ROWS * DIM * 4] * 2
    if size == 1:
        assert "lockstep/unique_id_ratio" not in found
        return
    for period, (_, ratio) in enumerate(found["lockstep/unique_id_ratio"]):
        ids = [ids_of(rank, step) for rank in range(2) for step in range(period * PERIOD, (period + 1) * PERIOD)]
        assert ratio == pytest.approx(sum(len(np.unique(one)) for one in ids) / (len(ids) * BATCH))
        for owner in range(2):
            served = sum(np.sum(np.unique(one) % 2 == owner) for one in ids) / PERIOD
            assert found[f"lockstep/rank_served_rows_per_step/{owner}"][period][1] == pytest.approx(served)
    for name in ("exchange_seconds_per_step", "wait_seconds_per_step", "rank_wait_seconds_per_step/1"):
        assert all(value >= 0 for _, value in found[f"lockstep/{name}"])


@pytest.mark.parametrize(("wrong", "error"), [(0, ValueError), ("many", TypeError)])
def test_a_period_is_a_number_of_steps(wrong, error):
    with pytest.raises(error, match="StatsHook"):
        StatsHook("folder", every_n_steps=wrong)
