"""Tests of named collectives against numpy: in any order, with errors that every rank gets."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.engine.context import context
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

MODES = ("session", "function", "eager")


def run(mode, build):
    """Returns the results of `build()` as numpy arrays."""
    if mode == "eager":
        return tf.nest.map_structure(np.asarray, build())
    if mode == "function":
        return tf.nest.map_structure(np.asarray, tf.function(build)())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(build())


# Functions that run on workers.


def all_ops():
    named.open_lane()
    size, rank = context.world_size, context.rank
    own = np.arange(6, dtype=np.float32).reshape(3, 2) + 10 * rank
    everyone = np.stack([np.arange(6, dtype=np.float32).reshape(3, 2) + 10 * r for r in range(size)])
    oracles = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "product": np.prod}
    for mode in MODES:
        for reduction, oracle in oracles.items():
            (got,) = run(mode, lambda r=reduction: named.allreduce([tf.constant(own)], r))
            np.testing.assert_allclose(got, oracle(everyone, axis=0), rtol=1e-6)
        (got,) = run(mode, lambda: named.allreduce([tf.constant(own)], prescale=0.5, postscale=3.0))
        np.testing.assert_allclose(got, 1.5 * everyone.sum(0))
        (got,) = run(mode, lambda: named.allgather([tf.constant(own[: rank + 1])]))
        np.testing.assert_equal(got, np.concatenate([everyone[r][: r + 1] for r in range(size)]))
        (got,) = run(mode, lambda: named.broadcast([tf.constant(own)], root=size - 1))
        np.testing.assert_equal(got, everyone[size - 1])
        (got,) = run(mode, lambda: named.reducescatter([tf.constant(own)], "mean"))
        np.testing.assert_allclose(got, np.array_split(everyone.mean(0), size)[rank])
        splits = [1] * size if size <= 3 else [1, 1, 1] + [0] * (size - 3)
        got, received = run(mode, lambda s=splits: named.alltoall([tf.constant(own)], [tf.constant(s)]))
        np.testing.assert_equal(got[0], everyone[:, rank] if rank < 3 else np.zeros([0, 2]))
        np.testing.assert_equal(received[0], [splits[rank]] * size)
        place = run(mode, lambda: (named.rank_in(), named.size_of()))
        assert place == (rank, size)
    # Each rank asks for 40 tensors in an order of its own.
    numbers = np.random.default_rng(rank).permutation(40)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        asked = {i: named.allreduce([tf.fill([int(i)], float(rank))], names=[f"t{i}"])[0] for i in numbers}
        for i, got in session.run(asked).items():
            np.testing.assert_equal(got, np.full([i], sum(range(size)), np.float32))
    assert named.barrier(name="end") is None
    assert int(named.join()) in range(size)
    named.close_lane()


def gradients():
    named.open_lane()
    size, rank = context.world_size, context.rank
    x = tf.constant([[1.0, 5.0 - rank], [2.0, 0.0 if rank else 3.0], [4.0, 7.0]])
    ones = tf.constant(np.arange(6, dtype=np.float32).reshape(3, 2)) * (rank + 1)
    weights = np.arange(6, dtype=np.float32).reshape(3, 2) * sum(range(1, size + 1))

    def gradient(build, values=x):
        with tf.GradientTape() as tape:
            tape.watch(values)
            (y,) = build(values)
            loss = tf.reduce_sum(y * ones) if y.shape == ones.shape else tf.reduce_sum(y) * (rank + 1)
        return tape.gradient(loss, values).numpy()

    np.testing.assert_allclose(gradient(lambda v: named.allreduce([v])), weights)
    np.testing.assert_allclose(gradient(lambda v: named.allreduce([v], "mean")), weights / size)
    got = gradient(lambda v: named.allreduce([v], "max"))
    wanted = weights * np.array([[1 / size, rank == 0], [1 / size, rank == 0], [1 / size, 1 / size]])
    np.testing.assert_allclose(got, wanted)
    # With two ranks, the gradient of the product is the other rank's value, also where this rank's value is zero.
    others = np.array([[1.0, 5.0 - (1 - rank)], [2.0, 3.0 if rank else 0.0], [4.0, 7.0]])
    np.testing.assert_allclose(gradient(lambda v: named.allreduce([v], "product")), weights * others)
    total = sum(range(1, size + 1))
    np.testing.assert_allclose(gradient(lambda v: named.allgather([v])), np.full([3, 2], total))
    np.testing.assert_allclose(gradient(lambda v: named.allgather([v], gradient="mean")), np.full([3, 2], total / size))
    np.testing.assert_allclose(gradient(lambda v: named.broadcast([v], 1)), weights if rank == 1 else 0 * weights)
    got = gradient(lambda v: named.reducescatter([v], "mean"))
    np.testing.assert_allclose(got, np.array([[1.0], [1.0], [2.0]]) / size * np.ones([3, 2]))
    got = gradient(lambda v: named.alltoall([v], [tf.constant([1, 1])])[0])
    np.testing.assert_allclose(got, [[1, 1], [2, 2], [0, 0]])
    named.barrier(name="end")
    named.close_lane()


def errors():
    named.open_lane()
    rank = context.rank
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"shape: rank 0 has \[2\]; rank 1 has \[3\]"):
        named.allreduce([tf.zeros([2 + rank])], names=["x"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1: alltoall 'x': a split is -1"):
        named.alltoall([tf.zeros([2])], [tf.constant([-1, 1] if rank else [1, 1])], names=["x"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="got a scalar"):
        named.alltoall([tf.zeros([])], names=["x"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="got 3 rows and no splits, wanted .* multiple of 2"):
        named.alltoall([tf.zeros([3])], names=["x"])
    with pytest.raises(tf.errors.FailedPreconditionError, match="group 0 has a named lane already"):
        named.open_lane()
    named.barrier(name="end")
    named.close_lane()
    with pytest.raises(tf.errors.FailedPreconditionError, match="not initialized"):
        named.barrier()


def large_results():
    """Checks results that are views of shared memory, and the root's result, which is its input."""
    before = context.options.shared_bytes_per_rank
    context.options.shared_bytes_per_rank = 32 << 20
    named.open_lane()
    context.options.shared_bytes_per_rank = before
    everyone = [tf.random.stateless_uniform([1 << 20], [r, 7]).numpy() for r in range(2)]
    own = tf.constant(everyone[context.rank])
    kept = []
    for i in range(10):  # more results than shared memory can hold
        (total,), (sent,) = named.allreduce([own + float(i)]), named.broadcast([own], 1)
        np.testing.assert_allclose(total[:: 1 << 12], (everyone[0] + everyone[1] + 2 * i)[:: 1 << 12], rtol=1e-5)
        np.testing.assert_array_equal(sent[:: 1 << 12], everyone[1][:: 1 << 12])
        kept.append(total)
    np.testing.assert_allclose(kept[0], everyone[0] + everyone[1], rtol=1e-6)
    named.barrier(name="end")
    named.close_lane()


def leaving():
    """Checks that a rank that leaves ends its own wait on another thread, and the calls of other ranks."""
    named.open_lane(label="the lane of the test")
    named.barrier(name="start")
    caught = []

    def wait():
        try:
            named.barrier(name="never")
        except tf.errors.OpError as error:
            caught.append(error)

    if context.rank == 1:
        waits = threading.Thread(target=wait)
        waits.start()
        time.sleep(1)  # until it waits
        named.close_lane()
        waits.join(120)
        assert isinstance(caught[0], tf.errors.CancelledError)
    else:
        with pytest.raises(tf.errors.InternalError, match="the lane of the test: .*rank 1 left the job"):
            named.barrier(name="other")
        named.close_lane()


def all_of_two():
    all_ops()
    gradients()
    errors()
    large_results()
    leaving()


@pytest.mark.parametrize(("size", "part"), [(1, all_ops), (2, all_of_two), (4, all_ops)])
def test_on_workers(size, part):
    """Runs a part on workers; several parts open lanes several times in a process."""
    call_workers(part, size, timeout_s=120)
