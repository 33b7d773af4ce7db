"""Prepared folders: rows that are written in any pieces lie in whole row groups, and a failure leaves no folder."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schema import EVAL, LABEL, TRAIN, Schema, SplitWriter, files, write_folder

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

SCHEMA = Schema(
    "made", ("n",), {"c": 50}, {"l": 9}, 64, 0.1, 1, row_group_rows=10, train_rows=57, eval_rows=0, origin={}
)


def _columns(begin, end):
    ids = np.arange(begin, end)
    lists = pa.array([list(range(i % 3)) for i in ids], pa.list_(pa.int64()))
    return {LABEL: (ids % 2).astype(np.float32), "n": (ids / 8).astype(np.float32), "c": ids % 50, "l": lists}


def _fill(folder):
    # File sizes are whole row groups: 24 rows become 2 groups.
    with SplitWriter(folder, TRAIN, SCHEMA, file_rows=24) as writer:
        for begin, end in ((0, 3), (3, 30), (30, 30), (30, 57)):
            writer.write(_columns(begin, end))
    with SplitWriter(folder, EVAL, SCHEMA, file_rows=24):
        pass
    return SCHEMA


def test_rows_of_any_pieces_lie_in_order_in_whole_row_groups(tmp_path):
    assert write_folder(tmp_path / "made", _fill) == Schema.load(tmp_path / "made") == SCHEMA
    parts = [pq.ParquetFile(path) for path in files(tmp_path / "made", TRAIN)]
    groups = [[part.metadata.row_group(i).num_rows for i in range(part.num_row_groups)] for part in parts]
    assert groups == [[10, 10], [10, 10], [10, 7]]
    table = pa.concat_tables([part.read() for part in parts])
    expected = _columns(0, 57)
    assert tuple(table.column_names) == SCHEMA.columns
    for name in (LABEL, "n", "c"):
        np.testing.assert_array_equal(table[name].to_numpy(), expected[name], err_msg=name)
    assert table["l"].to_pylist() == expected["l"].to_pylist()


def test_a_split_without_rows_is_one_file_with_the_columns(tmp_path):
    write_folder(tmp_path / "made", _fill)
    (path,) = files(tmp_path / "made", EVAL)
    assert pq.read_table(path).num_rows == 0 and pq.read_schema(path).names == list(SCHEMA.columns)


def test_a_failure_leaves_the_folder_as_it_was(tmp_path):
    write_folder(tmp_path / "made", _fill)

    def fail(folder):
        _fill(folder)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_folder(tmp_path / "made", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert Schema.load(tmp_path / "made") == SCHEMA


def test_a_folder_that_was_not_prepared_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="prepare the data with data.py"):
        Schema.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no Parquet file in train/"):
        files(tmp_path, TRAIN)
