from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import named_job
from lockstep._src.compat.horovod import job as horovod_job
from lockstep._src.compat.sok import job, starting
from lockstep._src.engine.context import context
from lockstep.testing import call_workers


def test_questions_before_init(monkeypatch):
    monkeypatch.setattr(job, "_tool", None)
    for ask in (job.rank, job.num_ranks, job.local_rank):
        with pytest.raises(RuntimeError, match="Communication tool is not set"):
            ask()
    with pytest.raises(RuntimeError, match="Communication tool is not set"):
        job.allgather(tf.ones([1]))


def test_a_second_init_is_refused(started):
    with pytest.raises(RuntimeError, match="cannot be set more than once"):
        job.set_comm_tool("horovod")


def test_an_unknown_tool_is_refused(monkeypatch):
    """The original ignores it, and fails at the first question."""
    monkeypatch.setattr(job, "_tool", None)
    with pytest.raises(ValueError, match="comm_tool: got 'mpi', wanted 'horovod', or 'single'"):
        job.set_comm_tool("mpi")
    assert not job.is_started()


def test_an_unknown_reduction_is_refused(started):
    with pytest.raises(ValueError, match="op: got 'product', wanted 'sum', 'average', 'max', 'min'"):
        job.allreduce(tf.ones([1]), "product")


@pytest.mark.parametrize("tool", ["horovod", "single"])
def test_collectives_of_one_process(monkeypatch, tool):
    monkeypatch.setattr(job, "_tool", None)
    job.set_comm_tool(tool)
    values = tf.constant([[1.0], [2.0]])
    for result in (job.allreduce(values, "sum"), job.allgather(values), job.broadcast(values, 0)):
        np.testing.assert_array_equal(result, values)
    received, splits = job.alltoall(values, tf.constant([2]))
    np.testing.assert_array_equal(received, values)
    np.testing.assert_array_equal(splits, [2])


def test_legacy_optimizers_become_the_default_ones_of_keras_2(monkeypatch):
    default = tf.keras.optimizers
    legacy = getattr(default, "legacy", None)
    has_legacy = getattr(getattr(legacy, "Optimizer", None), "__name__", "") == "OptimizerV2"
    starting.use_legacy_optimizers()
    try:
        assert (tf.keras.optimizers is legacy) == has_legacy
        assert (tf.optimizers is legacy) == has_legacy
        starting.use_legacy_optimizers()
    finally:
        starting.use_default_optimizers()
    assert tf.keras.optimizers is default


def check_collectives():
    starting.init("horovod", use_legacy_optimizer=False)
    rank, ranks = job.rank(), job.num_ranks()
    assert (rank, ranks) == (named_job.rank(), named_job.size())
    own = tf.fill([rank + 1, 2], float(rank))
    np.testing.assert_array_equal(job.allgather(own)[:, 0], np.repeat(range(ranks), np.arange(ranks) + 1))
    np.testing.assert_array_equal(job.broadcast(tf.constant(float(rank)), ranks - 1), ranks - 1)
    for op, wanted in {"sum": ranks * (ranks - 1) / 2, "average": (ranks - 1) / 2, "max": ranks - 1, "min": 0}.items():
        np.testing.assert_allclose(job.allreduce(tf.constant([float(rank)]), op), [wanted])
    received, splits = job.alltoall(tf.fill([ranks], rank), tf.ones([ranks], tf.int32))
    np.testing.assert_array_equal(received, range(ranks))
    np.testing.assert_array_equal(splits, [1] * ranks)


@pytest.mark.workers
def test_collectives():
    call_workers(check_collectives, 3, timeout_s=120)


def check_part_of_the_job():
    if context.rank == 2:
        return
    horovod_job.init([0, 1], None)
    with pytest.raises(ValueError, match="hvd.init made this process rank . of 2, wanted rank . of 3; .* all ranks"):
        starting.init("horovod", use_legacy_optimizer=False)


@pytest.mark.workers
def test_a_part_of_the_job_is_refused():
    call_workers(check_part_of_the_job, 3, timeout_s=120)
