"""Tests of LockstepAllGather, LockstepAllToAll, LockstepReduceScatter and LockstepBarrier on two workers."""

import time

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep.testing import operations_reported_by_case

SIZE = 2
DTYPES = (tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16)
DTYPES += (tf.uint32, tf.uint64)
ORACLES = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "prod": np.prod}
# Numbers of rows of the ranks, and shapes of a row.
COUNTS = [(2, 3), (0, 4), (1, 0), (0, 0), (500, 700)]
ROWS = [(), (3,), (2, 0), (2, 5)]


def rows_of(rank, count, row):
    return np.random.default_rng([rank, count]).integers(0, 8, [count, *row])


def gathered_rows_are_in_the_order_of_ranks():
    for counts in COUNTS:
        for row in ROWS:
            everyone = [rows_of(rank, count, row) for rank, count in enumerate(counts)]
            got = ops.lockstep_all_gather(everyone[context.rank])
            np.testing.assert_array_equal(got.gathered, np.concatenate(everyone))
            assert tuple(got.counts.numpy()) == counts
    for dtype in (*DTYPES, tf.bool):
        got = ops.lockstep_all_gather(tf.cast([context.rank], dtype)).gathered
        assert got.dtype == dtype
        np.testing.assert_array_equal(tf.cast(got, tf.int32), [0, 1])


def each_rank_gets_the_rows_that_were_sent_to_it():
    for counts in COUNTS:
        # Rank r keeps a third of its rows, or sends it, if r is 1.
        cuts = [[count // 3, count - count // 3] for count in counts]
        for row in ROWS:
            everyone = [rows_of(rank, count, row) for rank, count in enumerate(counts)]
            parts = [np.split(rows, [cut[0]]) for rows, cut in zip(everyone, cuts, strict=True)]
            got = ops.lockstep_all_to_all(everyone[context.rank], tf.constant(cuts[context.rank], tf.int64))
            np.testing.assert_array_equal(got.received, np.concatenate([part[context.rank] for part in parts]))
            assert got.received_splits.numpy().tolist() == [cut[context.rank] for cut in cuts]


def each_rank_keeps_its_share_of_the_reduced_rows():
    for counts in COUNTS:
        for op, oracle in ORACLES.items():
            for row in ROWS:
                everyone = [rows_of(rank, sum(counts), row).astype(np.float64) for rank in range(SIZE)]
                got = ops.lockstep_reduce_scatter(everyone[context.rank], tf.constant(counts, tf.int64), reduce_op=op)
                wanted = np.split(oracle(np.stack(everyone), axis=0), [counts[0]])[context.rank]
                np.testing.assert_array_equal(got, wanted, err_msg=f"{counts} {op} {row}")
    for dtype in DTYPES:
        got = ops.lockstep_reduce_scatter(tf.cast([[1], [2]], dtype), tf.ones([2], tf.int64))
        assert got.dtype == dtype
        np.testing.assert_array_equal(tf.cast(got, tf.int32), [[SIZE * (1 + context.rank)]])


def a_barrier_ends_when_all_ranks_have_reached_it():
    if context.rank == 1:
        time.sleep(0.3)
    reached = time.time()
    ops.lockstep_barrier()
    ended = time.time()
    times = ops.lockstep_all_gather(tf.constant([reached], tf.float64)).gathered
    assert ended >= max(times.numpy())


def wrong_numbers_of_rows_are_refused_on_all_ranks():
    rows = tf.ones([4, 3])

    def given(wrong, right=(2, 2)):
        return tf.constant(wrong if context.rank == 1 else right, tf.int64)

    for wrong, message in (
        ([3, 3], r"is \[3,3\], wanted numbers that add up to the 4 rows"),
        ([-1, 5], r"is \[-1,5\], wanted numbers of at least 0"),
        ([4], r"has shape \[1\], wanted \[2\], the number of rows for each rank"),
        ([[2, 2]], r"has shape \[1,2\], wanted \[2\]"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank 1: .*alltoall '.*': splits {message}"):
            ops.lockstep_all_to_all(rows, given(wrong))
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank 1: .*reducescatter '.*': counts {message}"):
            ops.lockstep_reduce_scatter(rows, given(wrong))


def scalars_are_refused_on_all_ranks():
    value = tf.constant(1.0) if context.rank == 1 else tf.ones([2])
    ones = tf.ones([2], tf.int64)
    for kind, call in (
        ("allgather", lambda: ops.lockstep_all_gather(value)),
        ("alltoall", lambda: ops.lockstep_all_to_all(value, ones)),
        ("reducescatter", lambda: ops.lockstep_reduce_scatter(value, ones)),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank 1: .*{kind} '.*': got a scalar"):
            call()


def ranks_that_disagree_all_fail():
    rows, ones = tf.ones([2, 3 + context.rank]), tf.ones([2], tf.int64)
    for call in (
        lambda: ops.lockstep_all_gather(rows),
        lambda: ops.lockstep_all_to_all(rows, ones),
        lambda: ops.lockstep_reduce_scatter(rows, ones),
        lambda: ops.lockstep_reduce_scatter(
            tf.ones([2]), tf.constant([2 * context.rank, 2 - 2 * context.rank], tf.int64)
        ),
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match="rank"):
            call()


CASES = [
    gathered_rows_are_in_the_order_of_ranks,
    each_rank_gets_the_rows_that_were_sent_to_it,
    each_rank_keeps_its_share_of_the_reduced_rows,
    a_barrier_ends_when_all_ranks_have_reached_it,
    wrong_numbers_of_rows_are_refused_on_all_ranks,
    scalars_are_refused_on_all_ranks,
    ranks_that_disagree_all_fail,
]


test_on_two_workers = operations_reported_by_case(CASES, SIZE)


def test_shapes_are_known_before_the_run():
    with tf.Graph().as_default():
        rows, counts = tf.zeros([4, 3]), tf.zeros([2], tf.int64)
        assert ops.lockstep_all_gather(rows).gathered.shape.as_list() == [None, 3]
        got = ops.lockstep_all_to_all(rows, counts)
        assert got.received.shape.as_list() == [None, 3] and got.received_splits.shape == [2]
        assert ops.lockstep_reduce_scatter(rows, counts).shape.as_list() == [None, 3]
        with pytest.raises(ValueError, match="at least rank 1"):
            ops.lockstep_all_gather(tf.constant(1.0))
