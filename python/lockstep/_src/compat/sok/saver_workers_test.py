"""Tests of `sok.Saver` of 1.x on several ranks: files of N ranks load on M, and an error of one rank is raised on all.

The row of a key depends only on the key here, so each rank can check its own part.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import files, job, rows, saver, saver_files, together, version_1
from lockstep._src.compat.sok.dump_workers_test import Failing
from lockstep._src.compat.sok.embedding_tables import EmbeddingVariable, HashedTable
from lockstep._src.compat.sok.layers import All2AllDenseEmbedding
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

KEYS = {
    "EmbeddingVariable": ("int64", np.array([-(2**62), -7, 0, 5, 12, 77, 2**32 + 1, 2**40 + 5, 2**62])),
    "EmbeddingVariable_1": ("uint32", np.array([0, 1, 6, 2**31 + 3, 2**32 - 2])),
    "EmbeddingVariable_2": ("int64", np.arange(12)),
}
INDEXED = "EmbeddingVariable_2"
DIM = 3


def test_files_of_any_number_of_ranks_load_on_any(tmp_path):
    _write_by_numpy(tmp_path / "by_numpy")
    for name in ("by_3", "in_graph_2"):
        (tmp_path / name).mkdir()
    call_workers(_dump_and_restore, 3, tmp_path, "by_3", ["by_numpy", "by_3"], timeout_s=60)
    call_workers(_dump_and_restore_in_graph, 2, tmp_path, "in_graph_2", ["by_3", "in_graph_2"], timeout_s=60)
    for name in ("by_3", "in_graph_2"):
        _check_by_numpy(tmp_path / name)


# The format, read only by numpy.


def value(keys):
    return (np.asarray(keys, np.int64)[:, None] % 1009 + np.array([0.25, 0.5, 0.75])).astype(np.float32)


def _write_by_numpy(folder):
    folder.mkdir()
    for name, (key_type, keys) in KEYS.items():
        keys = np.random.default_rng(7).permutation(keys)
        keys.astype(key_type).tofile(folder / f"{name}_keys.file")
        value(keys).tofile(folder / f"{name}_values.file")


def _check_by_numpy(folder):
    assert len(list(folder.iterdir())) == 2 * len(KEYS)
    for name, (key_type, wanted) in KEYS.items():
        keys = np.fromfile(folder / f"{name}_keys.file", key_type).astype(np.int64)
        np.testing.assert_array_equal(np.sort(keys), np.sort(wanted))
        got = np.fromfile(folder / f"{name}_values.file", np.float32).reshape(-1, DIM)
        np.testing.assert_array_equal(got, value(keys))


# Functions that run on workers.


def make_tables():
    """Returns the tables of `KEYS`, regardless of earlier tables."""
    tables = []
    for name, (key_type, keys) in KEYS.items():
        capacity = len(keys) // job.num_ranks() if name == INDEXED else 9
        table = EmbeddingVariable.CreateInstances(
            shape=[capacity, DIM], use_hashtable=name != INDEXED, key_dtype=key_type, initializer=tf.zeros_initializer()
        )
        table.m_var_name = name
        tables.append(table)
    return tables


def own_keys(table):
    keys = np.sort(KEYS[table.m_var_name][1])
    return keys[keys % job.num_ranks() == job.rank()]


def check(table, keys, values):
    np.testing.assert_array_equal(keys, own_keys(table), table.m_var_name)
    np.testing.assert_array_equal(values, value(keys), table.m_var_name)


def _dump_and_restore(folder, name, names):
    version_1.init(global_batch_size=6)
    # Each rank sends a few rows in a round.
    files.CHUNK_BYTES = 60
    tables, own = make_tables(), saver.Saver()
    for table in tables:
        rows.write(table, own_keys(table), value(own_keys(table)))
        assert own.dump_to_file(table, folder / name).numpy() == b"OK"
    for written in names:
        for table in make_tables():
            own.restore_from_file(table, str(folder / written))
            check(table, *rows.read(table))
    _look_up_what_was_restored(folder / name, own)
    _fail_on_all(folder, tables, own)
    # The job continues as if nothing had happened.
    own.dump_to_file(tables[0], folder / name)


def _look_up_what_was_restored(folder, own):
    """Checks that a lookup finds each key where a restore puts it; in 1.x, not keys below 0 or from 2^32 on."""
    layer = All2AllDenseEmbedding(9, DIM, 1, 1, dynamic_input=True)
    layer.embedding_variable.m_var_name = "EmbeddingVariable"
    own.restore_from_file(layer.embedding_variable, folder)
    keys = KEYS["EmbeddingVariable"][1]
    np.testing.assert_array_equal(layer(tf.constant(keys), training=False), value(keys))


def _fail_on_all(folder, tables, own):
    with pytest.raises(FileNotFoundError, match="Cannot open .*EmbeddingVariable_keys.file for writing: folder"):
        own.dump_to_file(tables[0], folder / "missing")
    (folder / "failed").mkdir(exist_ok=True)
    for name in ("create", "append", "sync"):
        with Failing(files.StagedFiles, name, 0), pytest.raises(OSError, match=f"no space for {name}") as caught:
            own.dump_to_file(tables[0], folder / "failed")
        assert job.rank() == 0 or "rank 0 failed: OSError" in str(caught.value)
        if job.rank() == 0:
            assert not list((folder / "failed").iterdir())
    # A key twice on one rank.
    if job.rank() == 0:
        np.array([1, 4, 7, 4]).tofile(folder / "failed" / "EmbeddingVariable_keys.file")
        np.zeros([4, DIM], np.float32).tofile(folder / "failed" / "EmbeddingVariable_values.file")
        np.arange(0, 30, 3).tofile(folder / "failed" / "EmbeddingVariable_1_keys.file")
        np.zeros([10, DIM], np.float32).tofile(folder / "failed" / "EmbeddingVariable_1_values.file")
    together.gather_counts(0)
    with pytest.raises(ValueError, match="EmbeddingVariable_keys.file: got key 4 more than once, wanted each key once"):
        own.restore_from_file(tables[0], folder / "failed")
    with pytest.raises(ValueError, match="_1_keys.file: got 10 keys for rank 0 of 3, wanted at most 9, max_vocabulary"):
        own.restore_from_file(tables[1], folder / "failed")
    # Rank 1 has eight keys, so three more are too many.
    if job.rank() == 1:
        rows.write(tables[1], np.arange(100, 121, 3), np.zeros([7, DIM], np.float32))
    kept = rows.read(tables[1])[0]
    with pytest.raises(ValueError, match="EmbeddingVariable_1': rank 1 has more keys than max_.* at most 9, got 11"):
        own.load_embedding_values(tables[1], np.zeros([12, DIM], np.float32))
    np.testing.assert_array_equal(rows.read(tables[1])[0], kept)


def _dump_and_restore_in_graph(folder, name, names):
    version_1.init(global_batch_size=6)
    with tf.Graph().as_default():
        tables, own = make_tables(), saver.Saver()
        filled, chains = [], []
        for table in tables:
            keys = own_keys(table)
            if isinstance(table, HashedTable):
                filled.append(table.insert(keys, value(keys)))
            else:
                filled.append(table.assign(value(keys)))
        for work in (own.dump_to_file, own.restore_from_file):
            for written in [name] if work == own.dump_to_file else names:
                chain = []
                for table in tables:
                    with tf.control_dependencies(chain):
                        chain = [work(table, str(folder / written))]
                chains.append(chain[0])
        read = [rows.export(table) for table in tables]
        initialize = [table.initializer for table in tables]
        bad = own.restore_from_file(tables[0], str(folder / "missing"))
        tf.compat.v1.get_default_graph().finalize()
        with tf.compat.v1.Session() as session:
            session.run([initialize])
            session.run(filled)
            assert session.run(chains[0]) == b"OK"
            for chain in chains[1:]:
                session.run(initialize)
                assert session.run(chain) == b"OK"
                for table, found in zip(tables, session.run(read), strict=True):
                    check(table, *found)
            with pytest.raises(tf.errors.OpError, match="EmbeddingVariable_keys.file doesn't exist"):
                session.run(bad)
    assert saver_files.key_path("a", "b") == "a/b_keys.file"
