"""Tests of the operations that save and restore dynamic tables: LockstepBeginSnapshots, LockstepWriteTables and others.

Two workers are emulated: each has a table of its own in this process.
"""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops
from lockstep.testing import tables

SIZE, DIM = 2, 3
NONE = tf.zeros([0], tf.int64)


def insert(table, keys, rows):
    ops.lockstep_dynamic_table_insert(table, tf.constant(keys), rows, NONE, NONE)


def rows_of(keys):
    return np.stack([np.array([len(str(key)), hash(key) % 7, i]) for i, key in enumerate(keys)]).astype(np.float32)


def contents(table, dtype=tf.int64):
    got = ops.lockstep_dynamic_table_export(table, Tkeys=dtype, num_slots=0, slots=[])
    return dict(zip(got.keys.numpy().tolist(), got.rows.numpy().tolist(), strict=True))


def begin(table):
    return ops.lockstep_begin_snapshots([table], names=["user"])


def write(prefix, counts, number, table, rank, **more):
    return ops.lockstep_write_tables(prefix, counts, number, [table], names=["user"], rank=rank, **more)


def end(table, number):
    ops.lockstep_end_snapshots(number, [table], names=["user"])


def restore(prefix, table, rank=0, world_size=1, **more):
    ops.lockstep_restore_tables(prefix, [table], names=["user"], rank=rank, world_size=world_size, **more)


def save(folder, saved, strings=False, **more):
    """Saves tables as workers do that have one each, and merges their files."""
    counts, numbers = zip(*map(begin, saved), strict=True)
    parts = [f"{folder}/part{rank}" for rank in range(len(saved))]
    for rank, table in enumerate(saved):
        assert write(parts[rank], tf.stack(counts), numbers[0], table, rank, **more)
    merged = parts
    if strings and len(saved) > 1:  # a single worker's strings are in its file
        ops.lockstep_join_strings(parts, f"{folder}/strings")
        merged = [*parts, f"{folder}/strings"]
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=merged, destination_prefix=f"{folder}/model")
    for table in saved:
        end(table, numbers[0])
    return f"{folder}/model"


def made(folder, keys, strings=False):
    """Returns tables of two workers with the keys that each of them owns, as a restore tells them apart."""
    whole = tables.make(DIM, string_keys=strings)
    insert(whole, keys, rows_of(keys))
    folder.mkdir()
    prefix = save(folder, [whole], strings)
    parts = [tables.make(DIM, string_keys=strings) for _ in range(SIZE)]
    for rank, table in enumerate(parts):
        restore(prefix, table, rank, SIZE)
    return whole, parts


@pytest.mark.parametrize("strings", [False, True])
@pytest.mark.parametrize("part_rows", [0, 2])
def test_the_rows_of_all_workers_are_one_table_that_any_workers_restore(tmp_path, strings, part_rows):
    keys = [f"word {i}\0".encode() for i in range(21)] if strings else list(range(-10, 11))
    dtype = tf.string if strings else tf.int64
    whole, saved = made(tmp_path / "whole", keys, strings)
    held = contents(whole, dtype)
    prefix = save(tmp_path, saved, strings, part_rows=part_rows)
    reader = tf.train.load_checkpoint(prefix)
    stored = zip(reader.get_tensor("user-keys").tolist(), reader.get_tensor("user-values").tolist(), strict=True)
    assert dict(stored) == held
    for world_size in (1, 2, 3):
        found = {}
        for rank in range(world_size):
            table = tables.make(DIM, string_keys=strings)
            restore(prefix, table, rank, world_size)
            part = contents(table, dtype)
            assert part and not set(part) & set(found), "each key has one owner"
            found.update(part)
        assert found == held


def test_a_snapshot_has_the_rows_of_its_beginning(tmp_path):
    table = tables.make(DIM)
    keys = list(range(9))
    insert(table, keys, rows_of(keys))
    held = contents(table)
    counts, number = begin(table)
    assert counts.numpy().tolist() == [[9, 0, 0]]
    insert(table, [*keys[:5], 77], tf.zeros([6, DIM]))
    ops.lockstep_dynamic_table_remove(table, tf.constant([7, 8]))
    assert write(f"{tmp_path}/model", [counts], number, table, 0, part_rows=2)
    end(table, number)
    restored = tables.make(DIM)
    restore(f"{tmp_path}/model", restored)
    assert contents(restored) == held
    assert set(contents(table)) == {*range(7), 77}


def test_a_worker_without_rows_says_so(tmp_path):
    empty, other = tables.make(DIM), tables.make(DIM)
    insert(other, [1], tf.ones([1, DIM]))
    counts, numbers = zip(*map(begin, (empty, other)), strict=True)
    has_rows = [
        bool(write(f"{tmp_path}/{rank}", tf.stack(counts), numbers[0], table, rank))
        for rank, table in enumerate((empty, other))
    ]
    # Worker 0 also writes what the table has once.
    assert has_rows[1]
    assert bool(write_empty(tmp_path)) is False


def write_empty(folder):
    """Writes the file of a second worker whose table is empty, as the first worker's is."""
    table = tables.make(DIM)
    counts, number = begin(table)
    return write(f"{folder}/empty", [counts, counts], number, table, 1)


def test_parts_of_a_checkpoint_may_be_restored(tmp_path):
    table = tables.make(DIM, record_frequency=True)
    ops.lockstep_dynamic_table_resolve(table, tf.constant([5, 5, 6]), NONE)
    ops.lockstep_dynamic_table_set_clock(table, tf.constant([7, 0], tf.int64))
    prefix = save(tmp_path, [table])
    for part, step, seen in (("all", 7, 2), ("rows", 0, 0), ("rows and slots", 0, 0)):
        restored = tables.make(DIM, record_frequency=True)
        restore(prefix, restored, part=part)
        assert contents(restored) == contents(table)
        assert ops.lockstep_dynamic_table_clock(restored).numpy()[0] == step
        assert ops.lockstep_dynamic_table_counts(restored, tf.constant([5]), of="frequency").numpy().tolist() == [seen]


def test_changes_are_known_since_a_checkpoint_of_a_tracked_table(tmp_path):
    table, rows = tables.make(DIM), tf.Variable(tf.zeros([4, DIM]))

    def numbers():
        return ops.lockstep_track_tables([table], [rows.handle]).numpy().tolist()

    assert numbers() == [0, 0]
    counts, number = begin(table)
    write(f"{tmp_path}/model", [counts], number, table, 0)
    end(table, number)
    assert numbers() == [number.numpy(), 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": DIM + 1}, r"table 'user': its rows are float\[\d+,3\], the table's float\[\d+,4\]"),
        ({"string_keys": True}, r"table 'user': its keys are int64\[\d+\], the table's string"),
    ],
)
def test_a_table_of_another_kind_is_refused(tmp_path, change, message):
    prefix = save(tmp_path, made(tmp_path / "whole", list(range(6)))[1])
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"checkpoint {prefix}, {message}"):
        restore(prefix, tables.make(**{"dim": DIM, **change}))


def test_missing_checkpoints_and_tables_are_named(tmp_path):
    with pytest.raises(tf.errors.NotFoundError, match=f"checkpoint {tmp_path}/none: "):
        restore(f"{tmp_path}/none", tables.make(DIM))
    prefix = save(tmp_path, made(tmp_path / "whole", list(range(6)))[1])
    with pytest.raises(tf.errors.NotFoundError, match="table 'item': it has no tensor 'item-keys'"):
        ops.lockstep_restore_tables(prefix, [tables.make(DIM)], names=["item"], rank=0, world_size=1)


def test_snapshots_are_written_in_order(tmp_path):
    table = tables.make(DIM)
    number = tf.constant(3, tf.int64)
    counts = tf.zeros([1, 1, 3], tf.int64)
    with pytest.raises(tf.errors.FailedPreconditionError, match="table 'user': no snapshot has begun"):
        write(f"{tmp_path}/model", counts, number, table, 0)
    with pytest.raises(tf.errors.FailedPreconditionError, match="table 'user': no snapshot has begun"):
        end(table, number)
    begin(table)
    for wrong in (counts[0], counts[:, :, :2], tf.zeros([1, 2, 3], tf.int64)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"counts of shape .*, wanted \[workers,1,3\]"):
            write(f"{tmp_path}/model", wrong, number, table, 0)
        begin(table)  # the error has dropped the snapshot
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"counts of shape \[1,1,3\], wanted"):
        write(f"{tmp_path}/model", counts, number, table, 1)


def test_wrong_attributes_are_refused(tmp_path):
    with pytest.raises(tf.errors.InvalidArgumentError, match="2 names for 1 tables"):
        ops.lockstep_begin_snapshots([tables.make(DIM)], names=["a", "b"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="changes are restored with all their parts"):
        restore(f"{tmp_path}/model", tables.make(DIM), changes=True, part="rows")
    never = ops.lockstep_dynamic_table(dim=DIM, shared_name="never created")
    with pytest.raises(tf.errors.FailedPreconditionError, match="'never created' has not been initialized"):
        begin(never)
    with pytest.raises(tf.errors.FailedPreconditionError, match="'never created' has not been initialized"):
        ops.lockstep_track_tables([never], [])


def test_files_of_strings_that_are_missing_are_named(tmp_path):
    with pytest.raises(tf.errors.OpError, match=f"checkpoint {tmp_path}/joined: "):
        ops.lockstep_join_strings([f"{tmp_path}/none"], f"{tmp_path}/joined")
