"""Tests of LockstepBroadcast on two workers."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep.testing import operations_reported_by_case

SIZE = 2
DTYPES = (tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16)
DTYPES += (tf.uint32, tf.uint64, tf.bool, tf.complex64, tf.complex128)


def inputs_of(rank):
    """Returns a tensor of each type, one without elements, and one of 1 MiB."""
    numbers = np.random.default_rng(rank).integers(0, 100, [3, 5])
    large = tf.random.stateless_uniform([1 << 18], [rank, 1])
    return [*(tf.cast(numbers, dtype) for dtype in DTYPES), tf.zeros([0, 4]), tf.constant(rank), large]


def all_ranks_get_the_tensors_of_the_root():
    for root in range(SIZE):
        got = ops.lockstep_broadcast(inputs_of(context.rank), root=root)
        for one, wanted in zip(got, inputs_of(root), strict=True):
            assert one.dtype == wanted.dtype
            np.testing.assert_array_equal(one, wanted)


def a_root_outside_of_the_job_is_refused():
    for root in (-1, SIZE):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"root {root} is not a rank of a job of size 2"):
            ops.lockstep_broadcast([tf.ones([2])], root=root)


def ranks_that_disagree_all_fail():
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"(?s)\[2\].*\[3\]"):
        ops.lockstep_broadcast([tf.ones([2 + context.rank])])
    with pytest.raises(tf.errors.FailedPreconditionError, match="the ranks disagree"):
        ops.lockstep_broadcast([tf.ones([2])], root=context.rank)


def strings_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="string"):
        ops.lockstep_broadcast([tf.constant("a")])


CASES = [
    all_ranks_get_the_tensors_of_the_root,
    a_root_outside_of_the_job_is_refused,
    ranks_that_disagree_all_fail,
    strings_are_refused,
]


test_on_two_workers = operations_reported_by_case(CASES, SIZE)


def test_shapes_are_known_before_the_run():
    with tf.Graph().as_default():
        got = ops.lockstep_broadcast([tf.zeros([3, 2]), tf.constant(1)])
        assert [one.shape.as_list() for one in got] == [[3, 2], []]
