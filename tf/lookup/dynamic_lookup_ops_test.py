"""Tests of the lookups of dynamic tables, LockstepDynamicTableResolve and others, against a dict."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops
from lockstep.testing import tables

DIM = 2
ONCE = tf.zeros([0], tf.int64)


def resolve(table, keys, times=ONCE, **more):
    return ops.lockstep_dynamic_table_resolve(table, tf.constant(keys), times, **more)


def lookup(table, keys):
    return ops.lockstep_dynamic_table_lookup(table, tf.constant(keys)).numpy()


def find(table, keys):
    return ops.lockstep_dynamic_table_find(table, tf.constant(keys)).numpy()


def write(table, numbers, values, slot="", initial=0.0):
    ops.lockstep_dynamic_table_write_rows(table, tf.constant(numbers, tf.int64), values, initial, slot=slot)


def read(table, numbers, slot="", initial=0.0):
    return ops.lockstep_dynamic_table_read_rows(table, tf.constant(numbers, tf.int64), initial, slot=slot).numpy()


@pytest.mark.parametrize("key_dtype", [tf.int32, tf.int64, tf.string])
def test_keys_keep_their_rows(key_dtype):
    def cast(keys):
        return tf.as_string(keys) if key_dtype == tf.string else tf.cast(keys, key_dtype)

    table = tables.make(DIM, string_keys=key_dtype == tf.string)
    rows = {}
    random = np.random.default_rng(1)
    for _ in range(5):
        keys = random.integers(-9, 9, [3, 4])
        found, numbers = resolve(table, cast(keys))
        assert found.shape == [3, 4, DIM] and numbers.shape == [12]
        wanted = [rows.get(key, [0.5] * DIM) for key in keys.ravel()]
        np.testing.assert_array_equal(tf.reshape(found, [12, DIM]), wanted)
        assert len(set(numbers.numpy())) == len(set(keys.ravel())), "a key has one row"
        np.testing.assert_array_equal(find(table, cast(keys)).ravel(), numbers)
        distinct, first = np.unique(keys, return_index=True)
        values = random.normal(size=[len(distinct), DIM]).astype(np.float32)
        write(table, numbers.numpy()[first], values)
        rows.update(zip(distinct, values, strict=True))
    np.testing.assert_array_equal(lookup(table, cast(list(rows))), list(rows.values()))


def test_keys_without_a_row_read_the_default_and_are_not_inserted():
    table = tables.make(DIM, default_value=7.0)
    resolve(table, [1])
    np.testing.assert_array_equal(lookup(table, [[1, 2]]), [[[0.5] * DIM, [7.0] * DIM]])
    assert find(table, [1, 2, 2]).tolist() == [0, -1, -1]


def test_keys_are_admitted_when_they_have_been_seen_often_enough():
    table = tables.make(DIM, min_frequency=3, default_value=7.0)
    rows, numbers = resolve(table, [1, 2], tf.constant([2, 3], tf.int64))
    assert rows.numpy().tolist() == [[7.0] * DIM, [0.5] * DIM] and (numbers.numpy() >= 0).tolist() == [False, True]
    assert resolve(table, [1]).numbers.numpy() >= 0


def test_a_gradients_indices_are_numbers_or_keys():
    table = tables.make(DIM)
    resolve(table, [50])
    keys = tf.constant([[40], [50]], tf.int64)
    for by in ("number", "key"):
        with tf.GradientTape() as tape:
            tape.watch(table)
            rows, _ = ops.lockstep_dynamic_table_resolve(table, keys, ONCE, gradients_by=by)
            loss = tf.reduce_sum(rows * [[[1.0, 2.0]], [[3.0, 4.0]]])
        gradient = tape.gradient(loss, table)
        assert gradient.indices.numpy().tolist() == (find(table, [40, 50]).tolist() if by == "number" else [40, 50])
        np.testing.assert_array_equal(gradient.values, [[1, 2], [3, 4]])


def test_slots_are_made_with_their_initial_value():
    table = tables.make(DIM)
    resolve(table, [1, 2, 3])
    np.testing.assert_array_equal(read(table, [2, 0], "m", 0.25), np.full([2, DIM], 0.25))
    write(table, [0, -1], [[1.0, 2.0], [3.0, 4.0]], "m", 0.25)
    np.testing.assert_array_equal(read(table, [0, 1, 2], "m", 0.25), [[1, 2], [0.25] * DIM, [0.25] * DIM])
    np.testing.assert_array_equal(read(table, [0]), [[0.5] * DIM])
    with pytest.raises(tf.errors.FailedPreconditionError, match="table 'user': slot 'm' has initial value 0.25"):
        read(table, [0], "m", 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda table: resolve(table, ["a"]), "table 'user': keys are string, wanted int64 or int32"),
        (lambda table: lookup(table, ["a"]), "table 'user': keys are string, wanted int64 or int32"),
        (lambda table: find(table, ["a"]), "table 'user': keys are string, wanted int64 or int32"),
        (lambda table: resolve(table, [1, 2], tf.ones([3], tf.int64)), "table 'user': 3 counts for 2 keys"),
        (
            lambda table: write(table, [0], tf.ones([2, DIM])),
            r"table 'user': got values of shape \[2,2\], wanted \[1,2\]",
        ),
        (
            lambda table: write(table, [0], tf.ones([1, 3])),
            r"table 'user': got values of shape \[1,3\], wanted \[1,2\]",
        ),
        (lambda table: read(table, [0, -2]), "row number -2 at position 1, wanted -1 to"),
        (lambda table: read(table, [1 << 40]), "row number 1099511627776 at position 0, wanted -1 to"),
    ],
)
def test_wrong_inputs_are_refused(call, message):
    table = tables.make(DIM)
    resolve(table, [5])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(table)
    np.testing.assert_array_equal(lookup(table, [5]), [[0.5] * DIM])


def test_integers_are_no_keys_of_a_table_of_strings():
    with pytest.raises(tf.errors.InvalidArgumentError, match="keys are int64, wanted string"):
        resolve(tables.make(DIM, string_keys=True), tf.constant([1], tf.int64))


def test_a_table_that_was_not_created_is_named():
    table = ops.lockstep_dynamic_table(dim=DIM, shared_name="never created")
    for call in (resolve, lookup, find):
        with pytest.raises(tf.errors.FailedPreconditionError, match="'never created' has not been initialized"):
            call(table, [1])


def test_shapes_are_known_before_the_run():
    with tf.Graph().as_default():
        table = ops.lockstep_dynamic_table(dim=DIM, shared_name="of a graph")
        keys = tf.zeros([4, 3], tf.int64)
        rows, numbers = ops.lockstep_dynamic_table_resolve(table, keys, ONCE.numpy())
        assert rows.shape == [4, 3, DIM] and numbers.shape == [12]
        assert ops.lockstep_dynamic_table_lookup(table, keys).shape == [4, 3, DIM]
        assert ops.lockstep_dynamic_table_find(table, keys).shape == [4, 3]
