import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import slices

VALUES = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)


def test_values_are_exchanged_for_others_of_the_same_rows():
    gradient = tf.IndexedSlices(tf.constant(VALUES), tf.constant([7, 2, 7]), tf.constant([9, 2]))
    other = slices.with_values(gradient, slices.values_of(gradient) * 2)
    assert isinstance(other, tf.IndexedSlices)
    np.testing.assert_array_equal(other.values, VALUES * 2)
    assert other.indices is gradient.indices and other.dense_shape is gradient.dense_shape


def test_a_tensor_is_its_own_values():
    gradient, other = tf.constant(VALUES), tf.constant(0.0)
    assert slices.values_of(gradient) is gradient
    assert slices.with_values(gradient, other) is other


@pytest.mark.parametrize("rows", [[7, 2, 7], [2, 1, 0], [4, 4, 4]])
def test_slices_are_summed_by_row(rows):
    summed = slices.summed_by_row(tf.IndexedSlices(tf.constant(VALUES), tf.constant(rows), tf.constant([9, 2])))
    wanted = np.zeros([9, 2], np.float32)
    np.add.at(wanted, rows, VALUES)
    assert len(summed.indices) == len(set(rows))
    np.testing.assert_array_equal(tf.convert_to_tensor(summed), wanted)
