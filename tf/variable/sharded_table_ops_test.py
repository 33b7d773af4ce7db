"""Tests of LockstepGatherTable and LockstepReduceTable on two workers, against numpy."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep.testing import operations_reported_by_case

SIZE = 2
# Numbers of rows, blocks and first ranks.
PLACEMENTS = [(0, 1, 0), (1, 1, 1), (7, 1, 0), (7, 1, 1), (10, 3, 0), (10, 3, 1), (5, 5, 1)]


def own(table, block, first):
    """Returns this rank's rows of a table that is dealt in blocks."""
    ids = np.arange(len(table))
    return table[(ids // block + first) % SIZE == context.rank]


def every_rank_gets_the_whole_table():
    for rows, block, first in PLACEMENTS:
        for shape, dtype in (((3,), tf.float32), ((), tf.int64), ((2, 2), tf.bfloat16)):
            table = np.arange(rows * int(np.prod(shape))).reshape([rows, *shape])
            got = ops.lockstep_gather_table(
                tf.cast(own(table, block, first), dtype), num_rows=rows, block=block, first_rank=first
            )
            assert got.dtype == dtype
            np.testing.assert_array_equal(tf.cast(got, tf.int64), table, err_msg=f"{rows} {block} {first}")


def each_rank_gets_the_sums_of_its_rows():
    for rows, block, first in PLACEMENTS:
        for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
            gradients = np.random.default_rng(rows).integers(-8, 8, [SIZE, rows, 3])
            got = ops.lockstep_reduce_table(
                tf.cast(gradients[context.rank], dtype), num_rows=rows, block=block, first_rank=first
            )
            assert got.dtype == dtype
            np.testing.assert_array_equal(tf.cast(got, tf.int64), own(gradients.sum(0), block, first))


def wrong_numbers_of_rows_are_refused_on_all_ranks():
    table = np.zeros([7 - context.rank, 3], np.float32)  # of rank 1 a row less
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"rank 1: .*got shape \[6,3\], wanted 7 rows"):
        ops.lockstep_reduce_table(table, num_rows=7)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"rank 0: .*got shape \[5,3\], wanted 4 rows: the table has 7"
    ):
        ops.lockstep_gather_table(np.zeros([5 - 2 * context.rank, 3], np.float32), num_rows=7)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the rows begin on rank 2; the job has 2 ranks"):
        ops.lockstep_gather_table(table, num_rows=7, first_rank=2)


def other_rows_or_placements_are_refused_on_all_ranks():
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"(?s)rows \[2\].*rows \[3\]"):
        ops.lockstep_reduce_table(np.zeros([4, 2 + context.rank], np.float32), num_rows=4)
    with pytest.raises(tf.errors.FailedPreconditionError, match="in blocks of 2 from rank 0 on"):
        ops.lockstep_gather_table(np.zeros([2, 1], np.float32), num_rows=4, block=1 + context.rank)


CASES = [
    every_rank_gets_the_whole_table,
    each_rank_gets_the_sums_of_its_rows,
    wrong_numbers_of_rows_are_refused_on_all_ranks,
    other_rows_or_placements_are_refused_on_all_ranks,
]


test_on_two_workers = operations_reported_by_case(CASES, SIZE)


def test_shapes_are_known_before_the_run():
    with tf.Graph().as_default():
        rows = tf.compat.v1.placeholder(tf.float32, [None, 3])
        assert ops.lockstep_gather_table(rows, num_rows=9).shape == [9, 3]
        assert ops.lockstep_reduce_table(rows, num_rows=9).shape.as_list() == [None, 3]
        with pytest.raises(ValueError, match="at least rank 1"):
            ops.lockstep_gather_table(tf.constant(1.0), num_rows=1)
