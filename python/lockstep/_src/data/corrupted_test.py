"""skip_corrupted_data: unreadable data, and no other data, is left out and counted."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from lockstep._src.data.tabular import FrameDataset, TabularDataset
from lockstep.data import DataFrame, ParquetDataset

ROWS = 500
FIELDS = ["id", "x", "list", "text", DataFrame.Field("pair", tf.int64, 0, [2])]


def _rows(seed: int) -> list[dict]:
    """Returns rows; some have a null, outside or inside a list, or a list of three values in place of a pair."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(ROWS):
        row = {"id": i, "x": i * 0.5, "list": [i] * (i % 3), "text": f"row {i}", "pair": [i, i + 1]}
        bad = random.choice(["", "x", "list", "inside", "text", "pair"], p=[0.9, 0.02, 0.02, 0.02, 0.02, 0.02])
        if bad == "inside":
            row["list"] = [1, None]
        elif bad:
            row[bad] = [i] * 3 if bad == "pair" else None
        rows.append(row)
    return rows


def _is_good(row: dict) -> bool:
    return None not in (row["x"], row["list"], row["text"]) and None not in row["list"] and len(row["pair"]) == 2


def _write(path, rows, **options) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return str(path)


def _ids(dataset) -> list[int]:
    return [i for batch in dataset for i in batch["id"].numpy().tolist()]


# Promise (hybridbackend.md): drops and counts the unreadable rows (HybridBackend, a wrong result:
# `skip_corrupted_data=True` drops the whole batch, and its message has uninitialised row numbers).
@pytest.mark.parametrize("seed", range(4))
def test_exactly_the_bad_rows_are_left_out(tmp_path, seed, capfd):
    random = np.random.default_rng(seed)
    rows = _rows(seed)
    path = _write(tmp_path / "a.parquet", rows, row_group_size=int(random.integers(20, 200)))
    batch_size, workers = int(random.integers(1, 40)), 1 + seed % 3
    filters = [("id", ">", 50)] if seed % 2 else None
    read = []
    for worker in range(workers):
        dataset = ParquetDataset(
            path,
            batch_size,
            FIELDS,
            workers,
            worker,
            skip_corrupted_data=True,
            filters=filters,
            num_threads=2,
            _piece_rows=int(random.integers(1, 100)),
        )
        batches = list(dataset)
        assert all(len(batch["id"]) == batch_size for batch in batches[:-1])
        for batch in batches:
            read += [
                {"id": i, "x": x, "list": values, "text": text.decode(), "pair": pair}
                for i, x, values, text, pair in zip(
                    batch["id"].numpy().tolist(),
                    batch["x"].numpy().tolist(),
                    batch["list"].to_list(),
                    batch["text"].numpy(),
                    batch["pair"].numpy().tolist(),
                    strict=True,
                )
            ]
    wanted = [row for row in rows if filters is None or row["id"] > 50]
    assert read == [row for row in wanted if _is_good(row)]
    # Each worker counts the rows of its share; the last count comes at the end.
    counts = re.findall(r"(\d+) rows? w\w+ left out as corrupted up to position \d+, the end", capfd.readouterr().err)
    assert sum(map(int, counts)) == sum(not _is_good(row) for row in wanted)


# Promise (hybridbackend.md): drops and counts the unreadable rows (HybridBackend, a wrong result:
# `skip_corrupted_data=True` drops the whole batch, and its message has uninitialised row numbers).
@pytest.mark.parametrize("filters", [None, [("text", "!=", "row 210")]], ids=["all", "filtered"])
@pytest.mark.parametrize("piece_rows", [0, 7, 120])
def test_damaged_row_groups_and_unreadable_files_do_not_affect_others(tmp_path, damage, capfd, piece_rows, filters):
    rows = [{"id": i, "text": f"row {i}"} for i in range(400)]
    options = {"row_group_size": 50, "compression": "none"}
    _write(tmp_path / "a.parquet", rows[:200], **options)
    whole = (tmp_path / "a.parquet").read_bytes()
    damage(tmp_path / "a.parquet", [1, 3])
    (tmp_path / "b.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "c.parquet").write_bytes(b"")
    _write(tmp_path / "d.parquet", rows[200:], **options)
    expected = [*range(50), *range(100, 150), *range(200, 400)]
    arguments = {"filters": filters, "skip_corrupted_data": True, "_piece_rows": piece_rows}
    ids = _ids(ParquetDataset(str(tmp_path), 32, ["id", "text"], **arguments))
    assert ids == [i for i in expected if filters is None or i != 210]
    warnings = capfd.readouterr().err
    assert "100 rows were left out as corrupted up to position 400, the end of the data; the first: file" in warnings
    assert re.search(r"a file is left out: file '.*b.parquet': not a readable", warnings)
    assert re.search(r"a file is left out: file '.*c.parquet': not a readable", warnings)
    assert _ids(FrameDataset(str(tmp_path), 32, skip_corrupted_data=True)) == expected
    assert _ids(TabularDataset.from_parquet(str(tmp_path), skip_corrupted_data=True).batch(32)) == expected
    with pytest.raises(tf.errors.DataLossError):
        _ids(ParquetDataset(str(tmp_path / "a.parquet"), 32))


@pytest.mark.parametrize("taken", [1, 13])
def test_the_position_is_saved_and_restored(tmp_path, taken):
    path = _write(tmp_path / "a.parquet", _rows(9), row_group_size=60)

    def make():
        return ParquetDataset(path, 16, FIELDS, skip_corrupted_data=True)

    expected = [batch["id"].numpy().tolist() for batch in make()]
    iterator = iter(make())
    for _ in range(taken):
        next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "position"))
    other = iter(make())
    tf.train.Checkpoint(iterator=other).restore(saved)
    assert [batch["id"].numpy().tolist() for batch in other] == expected[taken:]


def test_errors_other_than_damage_remain_errors(tmp_path):
    path = _write(tmp_path / "a.parquet", _rows(1))
    with pytest.raises(tf.errors.NotFoundError, match="does not exist"):
        iter(ParquetDataset([path, str(tmp_path / "b.parquet")], 4, skip_corrupted_data=True))
    with pytest.raises(tf.errors.InvalidArgumentError, match="column 'x' is float64, wanted int64"):
        iter(ParquetDataset(path, 4, [DataFrame.Field("x", tf.int64, 0, [])], skip_corrupted_data=True))
    with pytest.raises(tf.errors.InvalidArgumentError, match="skip_corrupted_data is given and partition_by is"):
        ParquetDataset(path, 4, skip_corrupted_data=True, partition_by="batches")
