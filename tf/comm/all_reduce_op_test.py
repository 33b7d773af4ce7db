"""Tests of LockstepAllReduce on two workers, against numpy."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep.testing import operations_reported_by_case

SIZE = 2
# No elements, a scalar, few elements, and more than are sent without shared memory.
SHAPES = [(0, 4), (), (3, 5), (70, 300)]
ORACLES = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "prod": np.prod}
INTEGERS = (tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64)
FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)


def inputs_of(rank):
    return [np.random.default_rng([rank, i]).integers(1, 8, shape) for i, shape in enumerate(SHAPES)]


def reduced(tensors, **more):
    return ops.lockstep_all_reduce(tensors, **more)


def tensors_are_reduced_one_by_one_and_together():
    everyone = [inputs_of(rank) for rank in range(SIZE)]
    for op, oracle in ORACLES.items():
        wanted = [oracle(np.stack(parts), axis=0) for parts in zip(*everyone, strict=True)]
        for dtype in FLOATS if op == "mean" else FLOATS + INTEGERS:
            mine = [tf.cast(part, dtype) for part in everyone[context.rank]]
            together = reduced(mine, reduce_op=op)
            alone = [reduced([tensor], reduce_op=op)[0] for tensor in mine]
            for results in (together, alone):
                for got, right in zip(results, wanted, strict=True):
                    assert got.dtype == dtype
                    np.testing.assert_array_equal(tf.cast(got, tf.float64), right, err_msg=f"{op} {dtype.name}")


def booleans_have_a_minimum_and_a_maximum():
    mine = tf.constant([context.rank == 0, True, False])
    assert reduced([mine], reduce_op="max")[0].numpy().tolist() == [True, True, False]
    assert reduced([mine], reduce_op="min")[0].numpy().tolist() == [False, True, False]


def inputs_stay_as_they_are():
    for shape in SHAPES:
        variable = tf.Variable(tf.fill(shape, 3.0))
        (got,) = reduced([variable.read_value()])
        np.testing.assert_array_equal(variable, np.full(shape, 3.0))
        np.testing.assert_array_equal(got, np.full(shape, 6.0))


def ranks_that_disagree_all_fail():
    rank = context.rank
    for call in (
        lambda: reduced([tf.zeros([2 + rank])]),
        lambda: reduced([tf.zeros([2], tf.float64 if rank else tf.float32)]),
        lambda: reduced([tf.zeros([2])] * (1 + rank)),
        lambda: reduced([tf.zeros([2])], reduce_op="max" if rank else "min"),
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match="rank"):
            call()
    np.testing.assert_array_equal(reduced([tf.ones([2])])[0], [SIZE, SIZE])


def sums_of_no_numbers_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError):
        reduced([tf.constant(["a"])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="average"):
        reduced([tf.constant([1])], reduce_op="average")


CASES = [
    tensors_are_reduced_one_by_one_and_together,
    booleans_have_a_minimum_and_a_maximum,
    inputs_stay_as_they_are,
    ranks_that_disagree_all_fail,
    sums_of_no_numbers_are_refused,
]


test_on_two_workers = operations_reported_by_case(CASES, SIZE)


def test_shapes_are_known_before_the_run():
    with tf.Graph().as_default():
        tensors = [tf.zeros(shape) for shape in SHAPES]
        assert [tuple(one.shape) for one in reduced(tensors)] == SHAPES
