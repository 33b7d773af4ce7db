"""Tests of reads of a variable's rows in programs, against TensorFlow's own gather."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.tables.sharded.row_reads import read_rows

tf1 = tf.compat.v1
ROWS = 7


def values(dtype="float32", row=(3,), rows=ROWS):
    return (np.arange(rows * np.prod(row, dtype=int)).reshape([rows, *row]) % 100).astype(dtype)


def test_strings_are_read_by_tensorflow():
    variable = tf.Variable(["a", "b", "c"])
    assert read_rows(variable, tf.constant([2, 0])).numpy().tolist() == [b"c", b"a"]


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_gradient_is_slices_as_of_tensorflows_gather(in_function):
    variable, numbers = tf.Variable(values(row=(2, 5))), tf.constant([[4, 1], [4, 6]])

    def gradient(read):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(read(variable, numbers) ** 2)
        return tape.gradient(loss, variable)

    run = tf.function(gradient) if in_function else gradient
    got, wanted = run(read_rows), run(tf.gather)
    assert isinstance(got, tf.IndexedSlices)
    for part in ("values", "indices", "dense_shape"):
        np.testing.assert_array_equal(getattr(got, part), getattr(wanted, part))


def test_a_function_reads_what_it_has_written():
    variable = tf.Variable(values())

    @tf.function
    def step():
        before = read_rows(variable, tf.constant([2]))
        variable.scatter_sub(tf.IndexedSlices(tf.ones([1, 3]), tf.constant([2])))
        return before, read_rows(variable, tf.constant([2]))

    before, after = step()
    np.testing.assert_array_equal(after, before - 1)
