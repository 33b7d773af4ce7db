"""Tests of `sok.Saver` of 1.x in one process, against files that numpy reads and writes."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import (
    embedding_tables,
    files,
    job,
    native_optimizers,
    rows,
    saver,
    saver_files,
    version_1,
)
from lockstep._src.compat.sok.embedding_tables import EmbeddingVariable

DIM = 3


@pytest.fixture(autouse=True)
def started(monkeypatch):
    monkeypatch.setattr(job, "_tool", "single")
    monkeypatch.setattr(version_1, "_program", version_1._Program(4, None))
    monkeypatch.setattr(embedding_tables, "_names", {})


def make_table(hashed=True, key_dtype="int64", capacity=8, name="EmbeddingVariable"):
    table = EmbeddingVariable.CreateInstances(
        shape=[capacity, DIM], use_hashtable=hashed, key_dtype=key_dtype, initializer=tf.ones_initializer()
    )
    table.m_var_name = name
    return table


def value(keys):
    return (np.asarray(keys, np.int64)[:, None] % 1009 + np.array([0.25, 0.5, 0.75])).astype(np.float32)


def write(folder, keys, key_type="int64", values=None):
    np.asarray(keys, key_type).tofile(folder / "EmbeddingVariable_keys.file")
    np.asarray(value(keys) if values is None else values).tofile(folder / "EmbeddingVariable_values.file")


def restore(folder, table=None):
    table = make_table() if table is None else table
    assert saver.Saver().restore_from_file(table, folder).numpy() == b"OK"
    return table


def by_key(table):
    keys, values = rows.read(table)
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("chunk_bytes", [1, 64 << 20])
@pytest.mark.parametrize(
    ("hashed", "key_dtype", "keys"),
    [
        (True, "int64", [7, -3, 2**40, 0]),
        (True, "uint32", [7, 2**32 - 2, 5]),
        (False, "int64", list(range(8))),
        (False, "uint32", list(range(8))),
    ],
)
def test_files_have_no_headers(tmp_path, monkeypatch, hashed, key_dtype, keys, chunk_bytes):
    monkeypatch.setattr(files, "CHUNK_BYTES", chunk_bytes)
    table = make_table(hashed, key_dtype)
    rows.write(table, np.array(keys), value(keys))
    own = saver.Saver()
    assert own() is None
    assert own.dump_to_file(table, str(tmp_path)).numpy() == b"OK"
    assert len(list(tmp_path.iterdir())) == 2
    written = np.fromfile(tmp_path / "EmbeddingVariable_keys.file", key_dtype)
    np.testing.assert_array_equal(np.sort(written), np.sort(keys))
    got = np.fromfile(tmp_path / "EmbeddingVariable_values.file", np.float32).reshape(-1, DIM)
    np.testing.assert_array_equal(got, value(written))
    assert by_key(restore(tmp_path, make_table(hashed, key_dtype))) == by_key(table)


def test_table_without_keys_has_empty_files(tmp_path):
    saver.Saver().dump_to_file(make_table(), tmp_path)
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {0}
    assert by_key(restore(tmp_path)) == {}


@pytest.mark.parametrize("key_type", ["int64", "uint32"])
@pytest.mark.parametrize("key_dtype", ["int64", "uint32"])
def test_type_of_keys_in_files_follows_from_their_length(tmp_path, key_type, key_dtype):
    write(tmp_path, [5, 1, 2**31 + 7], key_type)  # an odd number, too
    assert by_key(restore(tmp_path, make_table(key_dtype=key_dtype))).keys() == {5, 1, 2**31 + 7}


def test_restore_keeps_other_rows(tmp_path):
    write(tmp_path, [5, 1])
    table = make_table()
    rows.write(table, np.array([1, 9]), np.zeros([2, DIM], np.float32))
    restore(tmp_path, table)
    assert by_key(table) == {1: value([1])[0].tolist(), 5: value([5])[0].tolist(), 9: [0.0] * DIM}
    indexed = restore(tmp_path, make_table(hashed=False))
    wanted = np.ones([8, DIM], np.float32)
    wanted[[1, 5]] = value([1, 5])
    np.testing.assert_array_equal(indexed, wanted)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda d: (d / "EmbeddingVariable_keys.file").unlink(), FileNotFoundError, "_keys.file doesn't exist"),
        (lambda d: (d / "EmbeddingVariable_values.file").unlink(), FileNotFoundError, "_values.file doesn't exist"),
        (
            lambda d: write(d, [1, 2], values=value([1, 2])[:, :2]),
            ValueError,
            "_values.file: got 16 bytes, wanted a m",
        ),
        (
            lambda d: write(d, [1, 2], values=value([1])),
            ValueError,
            "_keys.file: got 16 bytes, wanted 8 or 4 bytes, 1",
        ),
        (lambda d: write(d, [1, 2, 3], values=value([1])), ValueError, "_keys.file: got 24 bytes, wanted 8 or 4 bytes"),
        (lambda d: write(d, [1], values=value([])), ValueError, "_keys.file: got 8 bytes, wanted 0 bytes, 0 keys"),
        (lambda d: write(d, [], values=value([1])), ValueError, "_keys.file: got 0 bytes, wanted 8 or 4 bytes, 1 keys"),
        (lambda d: write(d, [4, 6, 4]), ValueError, "_keys.file: got key 4 more than once, wanted each key once"),
        (lambda d: write(d, range(9)), ValueError, "_keys.file: got 9 keys for rank 0 of 1, wanted at most 8"),
    ],
)
def test_damaged_files_are_errors_by_name(tmp_path, damage, error, message):
    write(tmp_path, [1, 2])
    damage(tmp_path)
    table = make_table()
    with pytest.raises(error, match=message):
        restore(tmp_path, table)
    assert by_key(table) == {}


@pytest.mark.parametrize(
    ("table", "key", "wanted"),
    [
        (lambda: make_table(hashed=False), 8, "keys from 0 to 7 for table 'EmbeddingVariable'"),
        (lambda: make_table(hashed=False), -1, "keys from 0 to 7"),
        (lambda: make_table(key_dtype="uint32"), 2**32, "keys from 0 to 4294967295"),
    ],
)
def test_keys_that_a_table_cannot_have_are_errors(tmp_path, table, key, wanted):
    write(tmp_path, [1, key])
    with pytest.raises(files.DumpFileError, match=f"_keys.file: got key {key}, wanted {wanted}"):
        restore(tmp_path, table())


def test_file_that_becomes_shorter_is_an_error(tmp_path, monkeypatch):
    write(tmp_path, [1, 2])
    found = saver_files.RawFiles(str(tmp_path), "EmbeddingVariable", DIM)
    write(tmp_path, [1])
    with pytest.raises(files.DumpFileError, match="_keys.file: got 1 numbers, wanted 2: it became shorter"):
        list(found.chunks())


def test_restore_fails_before_a_table_has_too_many_keys(tmp_path):
    write(tmp_path, range(5))
    table = make_table()
    rows.write(table, np.arange(4, 9), value(range(4, 9)))
    with pytest.raises(ValueError, match="rank 0 has more keys than max_vocabulary_.*: wanted at most 8, got 9"):
        restore(tmp_path, table)
    assert by_key(table).keys() == set(range(4, 9))


@pytest.mark.parametrize("hashed", [True, False])
def test_values_of_a_whole_table(hashed):
    table, whole = make_table(hashed), value(range(7)).astype(np.float64)
    own = saver.Saver()
    assert own.load_embedding_values(table, [whole[:2], tf.constant(whole[2:])]).numpy() == b"OK"
    assert [by_key(table)[key] for key in range(7)] == whole.tolist()
    assert own.load_embedding_values(table, whole[:1] + 1).numpy() == b"OK"
    assert by_key(table)[0] == (whole[0] + 1).tolist()
    for wrong, error, message in (
        ([], ValueError, "Empty embedding values"),
        (np.zeros([0, DIM]), ValueError, "Empty embedding values"),
        (whole[:, :2], ValueError, r"must be \[vocabulary_size, embedding_vec_size\], but got \(7, 2\)"),
        (whole[0], ValueError, r"but got \(3,\), wanted \[vocabulary_size, 3\] for table 'EmbeddingVariable'"),
        (np.zeros([9, DIM]), tf.errors.InvalidArgumentError, "wanted at most 8, got 9"),
    ):
        with pytest.raises(error, match=message):
            own.load_embedding_values(table, wrong)


def test_other_variables_and_folders_are_refused(tmp_path):
    own = saver.Saver()
    for work in (own.dump_to_file, own.restore_from_file, own.load_embedding_values):
        with pytest.raises(TypeError, match=r"sok\.Saver: got <tf.Variable .*, wanted the embedding_variable"):
            work(tf.Variable([1.0]), tmp_path)
    with pytest.raises(FileNotFoundError, match="Cannot open .*/none/EmbeddingVariable_keys.file for writing"):
        own.dump_to_file(make_table(), pathlib.Path(tmp_path) / "none")


def test_restored_slots_begin_anew(tmp_path):
    table = make_table()
    rows.write(table, np.array([1]), value([1]))
    saver.Saver().dump_to_file(table, tmp_path)
    optimizer = tf.keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.5, name="adagrad")
    for _ in range(2):
        with native_optimizers.OptimizerScope([table]):
            optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([0], tf.int64)), table)])
    restore(tmp_path, table)
    np.testing.assert_array_equal(table.export_slots("adagrad/accumulator")[0], np.full([1, DIM], 0.5))
