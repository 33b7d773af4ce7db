"""Tests of the operations that read and write a whole dynamic table: LockstepDynamicTableExport and others."""

import time

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops
from lockstep.testing import tables

DIM = 2
NONE = tf.zeros([0], tf.int64)


def insert(table, keys, rows, frequencies=NONE, versions=NONE):
    ops.lockstep_dynamic_table_insert(table, tf.constant(keys), rows, frequencies, versions)


def rows_of(count):
    return np.random.default_rng(1).normal(size=[count, DIM]).astype(np.float32)


def export(table, slots=(), dtype=tf.int64):
    return ops.lockstep_dynamic_table_export(table, Tkeys=dtype, num_slots=len(slots), slots=list(slots))


def counts(table, keys, of):
    return ops.lockstep_dynamic_table_counts(table, tf.constant(keys), of=of).numpy().tolist()


def evict(table, dtype=tf.int64, **more):
    return ops.lockstep_dynamic_table_evict(table, Tkeys=dtype, **more)


def resolve(table, keys):
    return ops.lockstep_dynamic_table_resolve(table, tf.constant(keys), NONE)


def test_inserted_rows_are_exported_by_ascending_keys():
    table = tables.make(DIM, record_frequency=True, record_version=True)
    insert(table, [[5, -7], [3, 9]], rows := rows_of(4), [4, 3, 2, 1], [10, 20, 30, 40])
    order = [1, 2, 0, 3]
    got = export(table)
    assert got.keys.numpy().tolist() == [-7, 3, 5, 9]
    np.testing.assert_array_equal(got.rows, rows[order])
    assert got.frequencies.numpy().tolist() == [3, 2, 4, 1]
    assert got.versions.numpy().tolist() == [20, 30, 10, 40]
    insert(table, [3], [[8.0, 9.0]], [7], [50])
    assert export(table).rows.numpy()[1].tolist() == [8.0, 9.0]


def test_strings_are_exported():
    table = tables.make(DIM, string_keys=True)
    insert(table, [b"a\0", b"", "ü"], rows := rows_of(3))
    got = export(table, dtype=tf.string)
    assert dict(zip(got.keys.numpy().tolist(), got.rows.numpy().tolist(), strict=True)) == {
        b"a\0": rows[0].tolist(),
        b"": rows[1].tolist(),
        "ü".encode(): rows[2].tolist(),
    }


def test_slots_are_exported_and_begin_anew_where_a_row_is_inserted():
    table = tables.make(DIM)
    insert(table, [4, 2], rows_of(2))
    numbers = ops.lockstep_dynamic_table_find(table, tf.constant([2, 4]))
    ops.lockstep_dynamic_table_write_rows(table, numbers, [[1.0, 2.0], [3.0, 4.0]], 0.5, slot="m")
    insert(table, [4], rows_of(1))
    (slot,) = export(table, ["m"]).slot_values
    assert slot.numpy().tolist() == [[1.0, 2.0], [0.5, 0.5]]


def test_counts_that_are_not_recorded_are_exported_as_minus_one():
    table = tables.make(DIM)
    insert(table, [4], rows_of(1))
    assert export(table).frequencies.numpy().tolist() == export(table).versions.numpy().tolist() == [-1]


def test_counts_tell_how_often_and_when_keys_were_seen():
    begin = int(time.time())
    table = tables.make(DIM, record_frequency=True, record_version=True, record_seconds=True)
    resolve(table, [1, 2, 1])
    ops.lockstep_dynamic_table_end_step(table, tf.constant(6, tf.int64))
    resolve(table, [[1], [3]])
    keys = [[1, 2], [3, 4]]
    assert counts(table, keys, "frequency") == [[3, 1], [1, 0]]
    # The keys of the first lookup were seen in the step before the sixth.
    assert counts(table, keys, "version") == [[6, 5], [6, 0]]
    seconds = counts(table, keys, "seconds")
    assert seconds[1][1] == 0 and all(begin <= one <= time.time() for one in (*seconds[0], seconds[1][0]))


@pytest.mark.parametrize("of", ["frequency", "version", "seconds"])
def test_counts_that_are_not_recorded_are_refused(of):
    table = tables.make(DIM)
    with pytest.raises(tf.errors.FailedPreconditionError, match="table 'user': .* are not recorded: set record_"):
        counts(table, [1], of)


def test_keys_candidates_and_bytes_are_counted():
    table = tables.make(DIM, min_frequency=2)
    assert ops.lockstep_dynamic_table_count(table).numpy()[:2].tolist() == [0, 0]
    resolve(table, [1, 1, 2, 3])
    keys, candidates, small = ops.lockstep_dynamic_table_count(table).numpy()
    assert (keys, candidates) == (1, 2)
    insert(table, np.arange(10_000), rows_of(10_000))
    keys, candidates, large = ops.lockstep_dynamic_table_count(table).numpy()
    assert (keys, candidates) == (10_000, 0)
    assert large - small >= 9_999 * DIM * 4


@pytest.mark.parametrize(("order", "gone"), [("lru", [20, 30]), ("lfu", [10, 40])])
def test_the_coldest_keys_are_evicted_with_their_rows(order, gone):
    table = tables.make(DIM, max_keys=[3], order=order, record_frequency=True, record_version=True)
    keys = [10, 20, 30, 40, 50]
    insert(table, keys, rows := rows_of(5), [1, 5, 4, 2, 3], [4, 1, 2, 5, 6])
    got = evict(table)
    assert got.keys.numpy().tolist() == gone
    np.testing.assert_array_equal(got.rows, rows[[keys.index(key) for key in gone]])
    assert export(table).keys.numpy().tolist() == sorted(set(keys) - set(gone))
    assert evict(table).rows.shape == [0, DIM]


def test_keys_of_the_step_stay_unless_only_the_last_lookup_counts():
    table = tables.make(DIM, max_keys=[1])
    resolve(table, [1, 2])
    resolve(table, [3])
    assert evict(table).keys.numpy().tolist() == []
    assert evict(table, keeps_last_lookup_alone=True).keys.numpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda table: insert(table, ["a"], rows_of(1)), "Invalid", "keys are string, wanted int64 or int32"),
        (lambda table: insert(table, [1, 2], rows_of(1)), "Invalid", r"got rows of shape \[1,2\], wanted \[2,2\]"),
        (lambda table: insert(table, [1], tf.zeros([1, 3])), "Invalid", r"got rows of shape \[1,3\], wanted \[1,2\]"),
        (lambda table: insert(table, [1], rows_of(1), [1, 2]), "Invalid", "2 counts for 1 keys"),
        (lambda table: insert(table, [1], rows_of(1), NONE, [1, 2]), "Invalid", "2 counts for 1 keys"),
        (lambda table: counts(table, ["a"], "frequency"), "Invalid", "keys are string"),
        (lambda table: export(table, ["m"]), "Invalid", "has no slot 'm'"),
        (lambda table: export(table, dtype=tf.string), "Invalid", "its keys are int64"),
        (evict, "Failed", "got no budget to keep, wanted max_keys or max_bytes"),
    ],
)
def test_wrong_inputs_are_refused(call, error, message):
    table = tables.make(DIM, record_frequency=True)
    insert(table, [7], rows_of(1))
    errors = {"Invalid": tf.errors.InvalidArgumentError, "Failed": tf.errors.FailedPreconditionError}
    with pytest.raises(errors[error], match=f"table 'user'.* {message}"):
        call(table)
    assert export(table).keys.numpy().tolist() == [7]


def test_shapes_are_known_before_the_run():
    with tf.Graph().as_default():
        table = ops.lockstep_dynamic_table(dim=DIM, shared_name="of a graph")
        assert ops.lockstep_dynamic_table_count(table).shape == [3]
        assert ops.lockstep_dynamic_table_counts(table, tf.zeros([2, 3], tf.int64), of="version").shape == [2, 3]
        assert export(table, ["m"]).slot_values[0].shape.as_list() == [None, DIM]
        assert evict(table).rows.shape.as_list() == [None, DIM]
