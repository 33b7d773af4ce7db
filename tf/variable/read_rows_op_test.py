"""Tests of LockstepReadRows, which reads a variable's rows, against numpy and TensorFlow's own gather."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops

tf1 = tf.compat.v1
ROWS = 7


def values(dtype="float32", row=(3,), rows=ROWS):
    return (np.arange(rows * np.prod(row, dtype=int)).reshape([rows, *row]) % 100).astype(dtype)


def read_rows(variable, numbers):
    return ops.lockstep_read_rows(variable.handle, numbers, dtype=variable.dtype)


def memory_of(variable):
    """Reads a variable without a copy if it allows that; returns what then owns the memory too, and its address."""
    read = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    return read, np.asarray(read).__array_interface__["data"][0]


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool", "complex64"])
@pytest.mark.parametrize("row", [(), (3,), (2, 5)], ids=str)
@pytest.mark.parametrize(
    "numbers", [np.array([], "int64"), np.array([6, 0, 6]), np.array([[1], [5]], "int32")], ids=str
)
def test_rows_are_those_of_numpy(dtype, row, numbers):
    variable = tf.Variable(values(dtype, row))
    np.testing.assert_array_equal(read_rows(variable, tf.constant(numbers)), values(dtype, row)[numbers])


def test_many_rows_are_read_in_parallel():
    variable = tf.Variable(values(row=(64,), rows=5000))
    numbers = np.random.default_rng(1).integers(0, 5000, [300, 100])
    np.testing.assert_array_equal(read_rows(variable, tf.constant(numbers)), values(row=(64,), rows=5000)[numbers])


def test_shape_is_known_before_the_run():
    with tf.Graph().as_default():
        variable = tf1.get_variable("v", [ROWS, 3], use_resource=True)
        assert read_rows(variable, tf1.placeholder(tf.int64, [None, 2])).shape.as_list() == [None, 2, 3]
        assert read_rows(variable, tf1.placeholder(tf.int64)).shape.rank is None


@pytest.mark.parametrize("number", [-1, ROWS, 2**40])
def test_a_number_out_of_range_is_named(number):
    variable = tf.Variable(values(), name="user")
    numbers = tf.constant([0, 1, number], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"indices\[2\] is {number}, .*in \[0, {ROWS}\)"):
        read_rows(variable, numbers)


def test_a_variable_that_is_not_initialized_is_named():
    with tf.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable("user", [ROWS, 3], use_resource=True)
        rows = read_rows(variable, tf.constant([0]))
        with pytest.raises(tf.errors.FailedPreconditionError, match="variable 'user' is not initialized"):
            session.run(rows)


def test_memory_with_another_owner_is_not_copied():
    variable = tf.Variable(values())
    owner, memory = memory_of(variable)
    read_rows(variable, tf.constant([1]))
    assert memory_of(variable)[1] == memory
    # This is why there is such a read: TensorFlow's own gives the variable new memory that only it owns.
    tf.gather(variable, tf.constant([1]))
    assert memory_of(variable)[1] != memory
    del owner
