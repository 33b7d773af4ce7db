"""The order of columns: the order of the file, or of the given fields, and never the alphabetical order."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from pyarrow import orc

from lockstep._src.data.validate import validate
from lockstep._src.scope import scope
from lockstep.data import DataFrame, FrameDataset, ParquetDataset, TabularDataset, populate_defaults, rebatch

Field = DataFrame.Field

# The columns of the file, in an order that no sort would give.
_UNSORTED = ["z", "b", "list", "a"]


def _unsorted(path, rows: int = 6) -> str:
    columns = {name: np.arange(rows) + 10 * i for i, name in enumerate(_UNSORTED)}
    pq.write_table(pa.table({**columns, "list": [[i] * (i % 3) for i in range(rows)]}), path)
    return str(path)


def _orders(dataset) -> set[tuple[str, ...]]:
    """Returns the orders of columns in all places where a program can see them, without and with a graph."""
    mapped = dataset.map(lambda batch: {name: value for name, value in batch.items()})
    orders = {tuple(dataset.element_spec), tuple(mapped.element_spec)}
    orders |= {tuple(batch) for dataset in (dataset, mapped, dataset.prefetch(1)) for batch in dataset}
    seen = []
    for batch in dataset.map(lambda batch: seen.append(tuple(batch)) or batch).take(1):
        orders.add(tuple(batch))
    return orders | set(seen)


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("fields", [None, ["z", "a"], ["b", Field("z", tf.int64, 0, []), "list"]])
def test_columns_are_in_the_order_given_or_in_the_files(tmp_path, fields, file_format):
    path = _unsorted(tmp_path / "a.parquet")
    if file_format == "orc":
        orc.write_table(pq.read_table(path), tmp_path / "a.orc")
        path = str(tmp_path / "a.orc")
    wanted = tuple(_UNSORTED if fields is None else [getattr(f, "name", f) for f in fields])
    dataset = ParquetDataset(path, 4, fields)
    assert _orders(dataset) == {wanted}
    batch = next(iter(dataset))
    for name in set(wanted) - {"list"}:
        assert batch[name].numpy().tolist() == list(range(10 * _UNSORTED.index(name), 10 * _UNSORTED.index(name) + 4))
    assert _orders(rebatch(2)(dataset)) == {wanted}
    table = TabularDataset.from_parquet(path, fields)
    assert [field.name for field in table.fields] == list(wanted)
    assert _orders(table.batch(4)) == _orders(table.shuffle_batch(4, seed=1)) == {wanted}
    assert [field.name for field in FrameDataset(path, 4, fields).fields] == list(wanted)
    assert [field.name for field in FrameDataset.read_schema(path, fields)] == list(wanted)


@pytest.mark.pairwise
@pytest.mark.parametrize(
    "read",
    [ParquetDataset, FrameDataset, lambda path, rows: TabularDataset.from_parquet(path).batch(rows)],
    ids=["ParquetDataset", "FrameDataset", "TabularDataset"],
)
@pytest.mark.parametrize("options", [{}, {"data_batch_count": 2, "data_sync_drop_remainder": False}], ids=str)
@pytest.mark.parametrize("make", ["make_one_shot_iterator", "make_initializable_iterator"])
def test_columns_of_graphs_are_in_the_files_order(tmp_path, make, options, read):
    path = _unsorted(tmp_path / "a.parquet")
    with tf.Graph().as_default(), scope(**options):
        batches = getattr(tf.compat.v1.data, make)(read(path, 4)).get_next()
        for batch in batches if isinstance(batches, tuple) else [batches]:
            assert list(batch) == _UNSORTED


def test_a_column_with_only_a_default_keeps_its_place(tmp_path):
    path = _unsorted(tmp_path / "a.parquet")
    fields = ["z", Field("default", tf.int64, 0, [2], [7, 8]), "a"]
    wanted = ["z", "default", "a"]
    table = TabularDataset.from_parquet(path, fields)
    assert [field.name for field in table.fields] == wanted
    assert list(next(iter(table.batch(2)))) == wanted
    frames = FrameDataset(path, 2, fields)
    assert [field.name for field in frames.all_fields] == wanted
    assert list(next(iter(populate_defaults(frames.all_fields)(frames)))) == wanted


def test_files_that_differ_in_the_order_of_columns_are_read_as_the_first(tmp_path):
    first = _unsorted(tmp_path / "a.parquet")
    pq.write_table(pq.read_table(first).select(sorted(_UNSORTED)), tmp_path / "b.parquet")
    files = [first, str(tmp_path / "b.parquet")]
    validate(files, None, lower=False, peek=2)
    (batch,) = ParquetDataset(files, 12)
    assert list(batch) == _UNSORTED
    assert batch["z"].numpy().tolist() == list(range(6)) * 2
