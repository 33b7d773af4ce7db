"""Tests that stand-ins get the rows and slots of a table, and that only touched rows change."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.tables.dynamic import standins
from lockstep._src.tables.dynamic.creation import get_embedding_variable

v1 = tf.compat.v1
DIM = 3
KEYS = [10, 20, 30, 40]
MATRIX = np.random.RandomState(0).randn(4, DIM).astype(np.float32)


class Optimizer:
    """An object with a name, as optimizers are for stand-ins."""

    name = "mine"


def gradient_of(table, keys):
    """Returns the gradient of the sum of some keys' rows."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table.sparse_read(tf.constant(keys, tf.int64)))
    return tape.gradient(loss, table)


def counting_slot(dtype=tf.float32, initial=0.5):
    variable = resource_variable_ops.ResourceVariable(
        tf.fill([1, DIM], tf.constant(initial, dtype)), shape=tf.TensorShape([None, DIM]), trainable=False
    )
    return standins.Slot("seen", variable, initial)


def update_with(stand_in, slot):
    """Returns an update that adds the gradient to the slot, and subtracts the slot from the rows."""

    def update(summed):
        summed = tf.concat([summed, tf.zeros([1, DIM])], 0)
        slot.variable.assign(slot.variable + tf.cast(summed, slot.variable.dtype))
        stand_in.assign(stand_in - tf.cast(slot.variable, tf.float32))

    return update


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16], ids=["float32", "float16"])
def test_touched_rows_and_slots_are_read_updated_and_written(dtype):
    table, optimizer = get_embedding_variable("table", DIM, initializer=0.0), Optimizer()
    table.insert(KEYS, MATRIX)
    slot = counting_slot(dtype)
    update = update_with(standins.of(optimizer, table), slot)
    rows, seen = MATRIX.copy(), np.full([4, DIM], 0.5, np.float32)
    for places in ([0, 2, 0], [2], [0, 1]):
        gradient = gradient_of(table, [KEYS[place] for place in places])
        standins.update_rows(optimizer, table, gradient, [slot], update)
        np.add.at(seen, places, 1.0)
        touched = sorted(set(places))
        rows[touched] -= seen[touched]
        np.testing.assert_allclose(table.export().values, rows, rtol=1e-6)
        np.testing.assert_allclose(table.export_slots("mine/seen")[0], seen)


def test_a_gradient_of_no_rows_changes_none():
    table, optimizer = get_embedding_variable("table", DIM, initializer=0.0), Optimizer()
    table.insert(KEYS, MATRIX)
    slot = counting_slot()
    empty = tf.IndexedSlices(tf.zeros([0, DIM]), tf.zeros([0], tf.int64))
    standins.update_rows(optimizer, table, empty, [slot], update_with(standins.of(optimizer, table), slot))
    np.testing.assert_array_equal(table.export().values, MATRIX)


@pytest.mark.parametrize(
    ("indices", "numbers", "sums"),
    [([5, 2, 5], [5, 2, -1], [4.0, 2.0]), ([7], [7, -1], [1.0]), ([], [-1], [])],
    ids=["duplicates", "one", "none"],
)
def test_slices_are_summed_by_row_and_a_row_of_no_key_follows(indices, numbers, sums):
    values = tf.range(1.0, len(indices) + 1)[:, tf.newaxis]
    got, summed = standins.touched(tf.IndexedSlices(values, tf.constant(indices, tf.int64)))
    np.testing.assert_array_equal(got, numbers)
    np.testing.assert_array_equal(summed[:, 0], sums)


def test_each_optimizer_has_one_stand_in_for_a_table_and_both_can_go():
    table, other = (get_embedding_variable("table", dim) for dim in (DIM, DIM + 1))
    first, second = Optimizer(), Optimizer()
    stand_in = standins.of(first, table)
    assert standins.of(first, table) is stand_in
    assert standins.of(second, table) is not stand_in
    assert standins.of(first, other).shape.as_list() == [None, DIM + 1]
    goes_with_the_optimizer, goes_with_the_table = weakref.ref(stand_in), weakref.ref(standins.of(second, table))
    del first, stand_in
    gc.collect()
    assert goes_with_the_optimizer() is None and goes_with_the_table() is not None
    del table
    gc.collect()
    assert goes_with_the_table() is None


@pytest.mark.parametrize(("rows", "shape"), [(1, [None, DIM]), (2, [2, DIM])], ids=["one row", "other shapes"])
def test_slots_of_one_row_get_any_length(rows, shape):
    with standins.slots_of_any_length(DIM):
        made = tf.Variable(tf.zeros([rows, DIM]))
    assert made.shape.as_list() == shape
    assert tf.Variable(tf.zeros([1, DIM])).shape.as_list() == [1, DIM]


def test_a_stand_in_has_the_shape_of_one_row_while_its_slots_are_made():
    stand_in = standins.of(Optimizer(), get_embedding_variable("table", DIM))
    with standins.slots_of_any_length(DIM):
        assert stand_in.shape.as_list() == stand_in.get_shape().as_list() == [1, DIM]
    assert stand_in.shape.as_list() == stand_in.get_shape().as_list() == [None, DIM]


def test_a_dense_gradient_is_refused():
    table = get_embedding_variable("table", DIM)
    with pytest.raises(NotImplementedError, match="table 'table' is dynamic: its gradient is tf.IndexedSlices, got"):
        standins.checked(table, tf.zeros([4, DIM]))
