"""HybridBackend's collectives and partitions against numpy, on workers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep import distribute
from lockstep._src.engine.context import context
from lockstep.testing import call_workers

OPS = distribute.ops


def _run(*fetches):
    with tf.compat.v1.Session() as session:
        return session.run(fetches)


def reductions():
    mine = np.float32([1, 5, -2]) * (context.rank + 1)
    both = np.stack([np.float32([1, 5, -2]) * (r + 1) for r in range(2)])
    oracles = {OPS.SUM: np.sum, OPS.PROD: np.prod, OPS.MAX: np.max, OPS.MIN: np.min, OPS.AVG: np.mean}
    with tf.Graph().as_default():
        got = _run(distribute.allreduce(mine), *(distribute.allreduce(mine, reduce_op=op) for op in oracles))
    np.testing.assert_array_equal(got[0], both.sum(axis=0))
    for value, oracle in zip(got[1:], oracles.values(), strict=True):
        np.testing.assert_allclose(value, oracle(both, axis=0))


def gathers():
    with tf.Graph().as_default():
        scalar = distribute.allgather(context.rank + 5)
        even = distribute.allgather(np.full([2, 3], context.rank), varying_size=False)
        uneven = distribute.allgather(np.full([context.rank + 1], context.rank))
        given = distribute.broadcast(context.rank + 7, root_rank=1)
        assert even.shape == [4, 3]
        scalar, even, uneven, given = _run(scalar, even, uneven, given)
    np.testing.assert_array_equal(scalar, [5, 6])
    np.testing.assert_array_equal(even[:, 0], [0, 0, 1, 1])
    np.testing.assert_array_equal(uneven, [0, 1, 1])
    assert given == 8


def exchanges():
    rows, sizes = ([1.0, 2.0, 3.0], [1, 2]) if context.rank == 0 else ([4.0, 5.0, 6.0], [2, 1])
    wanted = ([1, 4, 5], [1, 2]) if context.rank == 0 else ([2, 3, 6], [2, 1])
    with tf.Graph().as_default():
        values = tf.constant(rows)
        received, received_sizes = distribute.alltoall(values, sizes=tf.constant(sizes), common_shape=[])
        (gradient,) = tf.gradients(received * (context.rank + 1.0), values)
        even = distribute.alltoall(tf.constant([10, 20]) + context.rank)
        assert received_sizes.dtype == tf.int32 and even.shape == [2]
        received, received_sizes, gradient, even = _run(received, received_sizes, gradient, even)
    np.testing.assert_array_equal(received, wanted[0])
    np.testing.assert_array_equal(received_sizes, wanted[1])
    # A row's gradient comes from the rank that received the row.
    np.testing.assert_array_equal(gradient, np.repeat([1.0, 2.0], sizes))
    np.testing.assert_array_equal(even, np.array([10, 11]) + 10 * context.rank)


@pytest.mark.workers
@pytest.mark.parametrize("work", [reductions, gathers, exchanges])
def test_on_two_workers(work):
    call_workers(work, 2)


def test_topologies_of_one_host():
    assert (
        distribute.active_size(distribute.Topology.ALL) == distribute.active_size(distribute.Topology.INTRA_NODE) == 1
    )
    assert distribute.active_size(distribute.Topology.INTER_NODE) == 1
    with pytest.raises(ValueError, match="7"):
        distribute.allreduce([1.0], reduce_op=7)


IDS = ([], [7], np.random.default_rng(0).integers(-(10**9), 10**9, 1000))


@pytest.mark.pairwise
@pytest.mark.parametrize("ids", IDS, ids=len)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("function", "owner", "arguments"),
    [
        (distribute.partition_by_modulo, lambda x: x % 5, (5,)),
        (distribute.partition_by_dual_modulo_stage_one, lambda x: (x % 15) % 5, (5, 3)),
        (distribute.partition_by_dual_modulo_stage_two, lambda x: (x % 15) // 3, (5, 3)),
    ],
    ids=["modulo", "stage one", "stage two"],
)
def test_sorted_ids_can_be_put_back(ids, dtype, function, owner, arguments):
    ids = np.asarray(ids, dtype)
    values, sizes, indices = (np.asarray(t) for t in function(tf.constant(ids), *arguments))
    np.testing.assert_array_equal(np.take(values, indices), ids)
    np.testing.assert_array_equal(sizes, np.bincount(owner(ids), minlength=5))
    np.testing.assert_array_equal(owner(values), np.repeat(np.arange(5), sizes))


@pytest.mark.parametrize("ids", IDS, ids=len)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_partitions_have_the_ids_and_their_positions(ids, dtype):
    ids = np.asarray(ids, dtype)
    parts, positions = distribute.partition(tf.constant(ids), 5)
    for p, (part, position) in enumerate(zip(parts, positions, strict=True)):
        np.testing.assert_array_equal(part, ids[ids % 5 == p])
        np.testing.assert_array_equal(part, ids[position])
