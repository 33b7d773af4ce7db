"""Tests of the life of a dynamic table: LockstepDynamicTable, LockstepDynamicTableCreate and others."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops
from lockstep.testing import tables

tf1 = tf.compat.v1
DIM = 2


def resolve(table, keys):
    return ops.lockstep_dynamic_table_resolve(table, tf.constant(keys), tf.zeros([0], tf.int64)).rows.numpy()


def keys_of(table, dtype=tf.int64):
    return ops.lockstep_dynamic_table_export(table, Tkeys=dtype, num_slots=0, slots=[]).keys.numpy().tolist()


def end_step(table, step=-1):
    ops.lockstep_dynamic_table_end_step(table, tf.constant(step, tf.int64))


def clock(table):
    return ops.lockstep_dynamic_table_clock(table).numpy().tolist()


def test_a_table_is_ready_when_it_has_been_created():
    table = ops.lockstep_dynamic_table(dim=DIM, shared_name="of the test of readiness")
    assert not ops.lockstep_dynamic_table_is_ready(table)
    assert ops.lockstep_dynamic_table_is_ready(tables.make(DIM))


def test_a_handle_has_the_shape_of_no_rows():
    with tf.Graph().as_default():
        table = ops.lockstep_dynamic_table(dim=DIM, shared_name="of a graph")
        assert table.shape == []
        assert ops.lockstep_dynamic_table_clock(table).shape == [2]
        assert ops.lockstep_dynamic_table_remove(table, tf.constant([1])).shape == []
    with pytest.raises(tf.errors.InvalidArgumentError, match="dim.* 0"):
        ops.lockstep_dynamic_table(dim=0)


def test_creating_a_table_again_empties_it():
    table = tables.make(DIM)
    resolve(table, [1, 2])
    create = {"table_name": "user", "dim": DIM, "initial": "constant", "initial_a": 2.0}
    ops.lockstep_dynamic_table_create(table, tf.zeros([0, DIM]), **create)
    assert keys_of(table) == []
    np.testing.assert_array_equal(resolve(table, [1]), [[2.0] * DIM])


def test_initial_rows_are_dealt_by_the_keys_remainder():
    rows = np.arange(6, dtype=np.float32).reshape(3, DIM)
    keys = np.array([0, 1, 5, 7])
    np.testing.assert_array_equal(resolve(tables.make(DIM, rows=rows), keys), rows[keys % 3])


@pytest.mark.parametrize(
    ("kind", "a", "b", "mean", "deviation", "limits"),
    [
        ("uniform", -1.0, 3.0, 1.0, 4 / np.sqrt(12), (-1, 3)),
        ("normal", 1.0, 2.0, 1.0, 2.0, (-np.inf, np.inf)),
        ("truncated_normal", 1.0, 2.0, 1.0, 2 * 0.8796, (-3, 5)),  # cut at two standard deviations
    ],
)
def test_initial_rows_have_their_distribution_and_depend_on_seed_and_key_only(kind, a, b, mean, deviation, limits):
    drawn = {"initial": kind, "initial_a": a, "initial_b": b}
    keys = np.arange(20_000)
    rows = resolve(tables.make(DIM, seed=1, **drawn), keys)
    np.testing.assert_allclose(rows.mean(), mean, atol=0.05)
    np.testing.assert_allclose(rows.std(), deviation, atol=0.05)
    assert limits[0] <= rows.min() and rows.max() <= limits[1]
    assert len(np.unique(rows)) > 0.99 * rows.size
    np.testing.assert_array_equal(resolve(tables.make(DIM, seed=1, **drawn), keys[::-100]), rows[::-100])
    assert not np.any(resolve(tables.make(DIM, seed=2, **drawn), keys[:9]) == rows[:9])


def test_rows_of_16_bits_are_rounded():
    for row_type, value in ((tf.float16, np.float16(0.1)), (tf.bfloat16, tf.cast(0.1, tf.bfloat16).numpy())):
        rows = resolve(tables.make(DIM, row_type=row_type, initial_a=0.1), [1])
        np.testing.assert_array_equal(rows, np.full([1, DIM], np.float32(value)))


def test_keys_that_have_not_been_seen_for_some_steps_are_evicted():
    table = tables.make(DIM, steps_to_live=[2], record_version=True)
    seen = {}
    for step, keys in enumerate([[1, 2, 3], [1], [2], [9], [9], [9]]):
        resolve(table, keys)
        seen.update(dict.fromkeys(keys, step))
        end_step(table)
    assert set(keys_of(table)) <= {key for key, step in seen.items() if step >= 3}
    assert 9 in keys_of(table)


def test_a_step_ends_once_in_a_run():
    for once, steps in ((True, 1), (False, 2)):
        with tf.Graph().as_default(), tf1.Session() as session:
            table = ops.lockstep_dynamic_table(dim=DIM, shared_name=f"of the run {once}")
            created = ops.lockstep_dynamic_table_create(
                table, tf.zeros([0, DIM]), table_name="user", dim=DIM, initial="constant", record_version=True
            )
            keys = tf1.placeholder(tf.int64, [None])
            rows, _ = ops.lockstep_dynamic_table_resolve(table, keys, tf.zeros([0], tf.int64))
            with tf.control_dependencies([rows]):
                first = ops.lockstep_dynamic_table_end_step(table, tf.constant(4, tf.int64), once_in_a_run=once)
            with tf.control_dependencies([first]):
                second = ops.lockstep_dynamic_table_end_step(table, tf.constant(9, tf.int64), once_in_a_run=once)
            session.run(created)
            session.run(second, {keys: [1]})
            assert session.run(ops.lockstep_dynamic_table_clock(table))[0] == {1: 4, 2: 9}[steps]


def test_the_clock_is_set_and_counts_steps():
    table = tables.make(DIM, record_version=True)
    assert clock(table) == [0, 0]
    ops.lockstep_dynamic_table_set_clock(table, tf.constant([7, 3], tf.int64))
    assert clock(table) == [7, 3]
    resolve(table, [1])
    end_step(table)
    assert clock(table)[0] == 8
    end_step(table, 20)
    assert clock(table)[0] == 20
    with pytest.raises(tf.errors.InvalidArgumentError, match="table 'user': a clock of 3 numbers, wanted 2"):
        ops.lockstep_dynamic_table_set_clock(table, tf.zeros([3], tf.int64))


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.string])
def test_removed_keys_are_counted_and_gone(dtype):
    table = tables.make(DIM, string_keys=dtype == tf.string)
    cast = tf.as_string if dtype == tf.string else lambda keys: tf.cast(keys, dtype)
    resolve(table, cast([1, 2, 3]).numpy())
    assert ops.lockstep_dynamic_table_remove(table, cast([[2, 5], [3, 2]])) == 2
    assert keys_of(table, tf.string if dtype == tf.string else tf.int64) == ([b"1"] if dtype == tf.string else [1])
    wrong = tf.constant([1] if dtype == tf.string else ["1"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="table 'user': keys are"):
        ops.lockstep_dynamic_table_remove(table, wrong)


def test_a_dropped_slot_begins_anew():
    def slot(initial):
        number = tf.constant([0], tf.int64)
        return ops.lockstep_dynamic_table_read_rows(table, number, initial, slot="m").numpy().tolist()

    table = tables.make(DIM)
    resolve(table, [1])
    assert slot(0.25) == [[0.25] * DIM]
    ops.lockstep_dynamic_table_drop_slots(table, slots=["m", "missing"])
    assert slot(3.0) == [[3.0] * DIM]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"key_owner": -3}, "table 'user': got the owner -3 of keys, wanted -2, -1 or a rank"),
        ({"initial": "gamma"}, "gamma"),
        ({"expected_keys": -1}, "expected_keys"),
        ({"min_frequency": -1}, "table 'user': "),
        ({"max_keys": [-1]}, "table 'user': "),
        ({"steps_to_live": [-1]}, "table 'user': "),
        ({"initial": "normal", "initial_b": -1.0}, "table 'user': "),
        ({"dim": (1 << 20) + 1}, r"table 'user': dimension 1048577, wanted 1 to 2\^20"),
    ],
)
def test_wrong_options_are_refused(attributes, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tables.make(**{"dim": DIM, **attributes})


def test_initial_rows_of_another_dimension_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="table 'user': "):
        tables.make(DIM, rows=tf.zeros([3, DIM + 1]))
