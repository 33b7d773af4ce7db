"""Tests of LockstepInitialRows and LockstepRepeatRow: the rows of a rank have the bits of the whole table."""

# Promise of this file (hybridbackend.md): the same values on any number of workers (HybridBackend, a wrong result:
# tables begin with other values than in one process, and an initial value of the whole shape fails).

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops

raw = tf.raw_ops
ROWS = 29
DTYPES = [tf.float32, tf.float16, tf.bfloat16, tf.float64]
KEY, COUNTER = [7], [3, 1 << 40]

STATELESS = {
    "uniform": raw.StatelessRandomUniformV2,
    "normal": raw.StatelessRandomNormalV2,
    "truncated_normal": raw.StatelessTruncatedNormalV2,
}


def placements(rows, sizes=(1, 2, 3)):
    """Yields ranks, numbers of ranks, blocks and first ranks: by rows, also from the last rank on; in blocks; whole."""
    for size in sizes:
        for block, first in [(1, 0), (1, size - 1), (4, 0), (rows, size - 1)]:
            for rank in range(size):
                yield rank, size, block, first


def assert_draws_rows_of(distribution, dtype, shape, placed):
    """Draws a rank's rows, and compares their bits, so that signs of zero count, with rows of the whole table."""
    rank, size, block, first = placed
    got = ops.lockstep_initial_rows(
        key=tf.constant(KEY, tf.uint64),
        counter=tf.constant(COUNTER, tf.uint64),
        operands=[],
        dtype=dtype,
        steps=[],
        distribution=distribution,
        rank=rank,
        world_size=size,
        num_rows=shape[0],
        block=block,
        first_rank=first,
        row_shape=shape[1:],
    )
    whole = STATELESS[distribution](
        shape=shape, key=tf.constant(KEY, tf.uint64), counter=tf.constant(COUNTER, tf.uint64), alg=1, dtype=dtype
    )
    ids = np.arange(shape[0])
    own = np.asarray(whole)[(ids // block + first) % size == rank]
    np.testing.assert_array_equal(bits(got), bits(own), err_msg=str(placed))


def bits(value):
    value = np.asarray(value)
    return value.view(f"u{value.itemsize}")


@pytest.mark.pairwise
@pytest.mark.parametrize("distribution", STATELESS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("row_shape", [[], [1], [3], [4], [5], [32], [3, 2]], ids=str)
def test_an_operation_draws_rows_of_the_whole_table(distribution, dtype, row_shape):
    for placed in placements(ROWS):
        assert_draws_rows_of(distribution, dtype, [ROWS, *row_shape], placed)


@pytest.mark.parametrize("distribution", STATELESS)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=lambda d: d.name)
def test_rows_of_a_table_that_several_threads_draw(distribution, dtype):
    for placed in [(0, 1, 1, 0), (1, 2, 1, 0), (0, 2, 1000, 0)]:
        assert_draws_rows_of(distribution, dtype, [(1 << 16) + 4465, 5], placed)


def test_a_rank_without_rows():
    assert_draws_rows_of("normal", tf.float32, [1, 4], (1, 2, 1, 0))


@pytest.mark.parametrize("dtype", [tf.float32, tf.int8, tf.complex128], ids=lambda d: d.name)
@pytest.mark.parametrize("row_shape", [[], [1], [3], [5000], [2, 3]], ids=str)
def test_an_operation_repeats_a_row(dtype, row_shape):
    row = tf.cast(tf.reshape(tf.range(np.prod(row_shape, dtype=int)), row_shape), dtype)
    for rows in [0, 1, 2, 7, 30_001 // max(row.shape.num_elements() // 8, 1)]:
        got = np.asarray(ops.lockstep_repeat_row(row=row, num_rows=rows))
        np.testing.assert_array_equal(got, np.broadcast_to(row, [rows, *row_shape]))


def test_strings_are_not_repeated():
    with pytest.raises(tf.errors.InvalidArgumentError, match="rows of string, wanted elements of fixed size"):
        ops.lockstep_repeat_row(row=tf.constant("a"), num_rows=2)


@pytest.mark.parametrize("change", ["steps", "operands", "shape", "ranks"])
def test_an_operation_with_wrong_arguments_is_refused(change):
    arguments = {
        "key": tf.constant(KEY, tf.uint64),
        "counter": tf.constant(COUNTER, tf.uint64),
        "operands": [tf.constant(1.0)],
        "steps": ["mul"],
        "distribution": "normal",
        "dtype": tf.float32,
        "row_shape": [3],
        "num_rows": 4,
        "rank": 0,
        "world_size": 1,
    }
    wrong, message = {
        "steps": ({"steps": ["pow"]}, "got the step 'pow', wanted add, mul"),
        "operands": ({"operands": []}, "got 0 operands for 1 steps"),
        "shape": (
            {"operands": [tf.ones([2])]},
            r"got an operand float of shape \[2\], wanted float, a scalar or \[3\]",
        ),
        "ranks": ({"rank": 1}, "got rank 1 and first rank 0 of 1"),
    }[change]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.lockstep_initial_rows(**{**arguments, **wrong})
