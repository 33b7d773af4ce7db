"""HybridBackend's datasets of tables and their transformations, compared with pyarrow and NumPy."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from lockstep._src.data import sync
from lockstep.data import (
    DataFrame,
    FrameDataset,
    RebatchDataset,
    TabularDataset,
    deduplicate,
    parse,
    populate_defaults,
    read_parquet,
    rebatch,
    unbatch_and_to_sparse,
)

Field = DataFrame.Field
ROWS = 100


def _table(rows: int = ROWS) -> pa.Table:
    lists = [[10 * i + j for j in range(i % 4)] for i in range(rows)]
    return pa.table(
        {
            "id": range(rows),
            "ids": lists,
            "four": [[i, i + 1, i + 2, i + 3] for i in range(rows)],
            "nested": [[[i], [], [i, i + 1]][: i % 4] for i in range(rows)],
            "text": [f"row {i}" for i in range(rows)],
            "texts": [[f"{i}", "x"][: i % 3] for i in range(rows)],
        }
    )


@pytest.fixture(name="path")
def _path(tmp_path):
    pq.write_table(_table(), tmp_path / "a.parquet", row_group_size=30)
    return str(tmp_path / "a.parquet")


def _plain(value):
    """Returns a column of a batch as nested lists."""
    if isinstance(value, DataFrame.Value):
        value = value.to_ragged()
    if isinstance(value, tf.SparseTensor):
        value = tf.RaggedTensor.from_sparse(value)
    value = value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
    return _text(value)


def _text(value):
    if isinstance(value, list):
        return [_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _rows(dataset) -> list[tuple]:
    """Returns all rows of all batches; columns in the order of their names."""
    rows = []
    for batch in dataset:
        rows += zip(*(_plain(batch[name]) for name in sorted(batch)), strict=True)
    return rows


def _expected(rows: int = ROWS) -> list[tuple]:
    columns = _table(rows).to_pydict()
    return list(zip(*(columns[name] for name in sorted(columns)), strict=True))


def test_batches_hold_values_of_the_files_lists(path):
    dataset = FrameDataset(path, 32)
    assert [field.name for field in dataset.all_fields] == _table().column_names
    batch = next(iter(dataset))
    assert isinstance(batch["ids"], DataFrame.Value) and isinstance(batch["id"], tf.Tensor)
    np.testing.assert_array_equal(batch["ids"].nested_row_splits[0], np.cumsum([0, *(i % 4 for i in range(32))]))
    assert len(batch["nested"].nested_row_splits) == 2
    assert _rows(dataset) == _expected()


def test_a_graphs_values_are_arrays_with_to_list(path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = FrameDataset(path, 8, ["nested", "texts"]).prefetch(1).make_one_shot_iterator().get_next()
        result = session.run(batch)
    assert result["nested"].to_list() == _table(8).column("nested").to_pylist()
    assert _text(result["texts"].to_list()) == _table(8).column("texts").to_pylist()


@pytest.mark.parametrize("ragged_rank", [None, 1])
def test_a_shape_makes_a_list_column_dense(path, ragged_rank):
    fields = [Field("four", tf.int64, ragged_rank, [4])]
    np.testing.assert_array_equal(next(iter(FrameDataset(path, 5, fields)))["four"].values[2], [2, 3, 4, 5])
    batch = next(iter(TabularDataset.from_parquet(path, fields).batch(5)))
    np.testing.assert_array_equal(batch["four"], [[i, i + 1, i + 2, i + 3] for i in range(5)])


@pytest.mark.parametrize("micro_batch", [7, 32, 64])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_rebatch_keeps_rows_and_order(path, micro_batch, drop_remainder):
    dataset = FrameDataset(path, micro_batch).apply(rebatch(32, drop_remainder))
    assert _rows(dataset) == _expected()[: 96 if drop_remainder else ROWS]
    assert [len(batch["id"]) for batch in dataset] == [32, 32, 32] + [4] * (not drop_remainder)


@pytest.mark.parametrize("name", ["ids", "nested", "texts"])
@pytest.mark.parametrize("pad", [False, True])
def test_parse_gives_sparse_or_padded_tensors(path, pad, name):
    batch = next(iter(TabularDataset.from_parquet(path, to_dense=pad).batch(16)))
    ragged = tf.ragged.constant(_table(16).to_pydict()[name])
    wanted = ragged.to_tensor() if pad else ragged.to_sparse()
    if pad:
        np.testing.assert_array_equal(batch[name], wanted)
    else:
        np.testing.assert_array_equal(batch[name].indices, wanted.indices)
        np.testing.assert_array_equal(batch[name].values, wanted.values)
        np.testing.assert_array_equal(batch[name].dense_shape, wanted.dense_shape)


@pytest.mark.parametrize("pad", [[5], [None, 5], [32, 5], {"ids": [5]}], ids=str)
def test_parse_pads_to_a_shape_with_or_without_rows(path, pad):
    batch = list(TabularDataset.from_parquet(path, ["ids"], to_dense=pad).batch(32))[-1]
    assert batch["ids"].shape == [4, 5] and batch["ids"][3].numpy().tolist() == [990, 991, 992, 0, 0]


def test_a_pad_of_no_column_is_refused(path):
    with pytest.raises(ValueError, match="pad has .'idz'.*ids"):
        TabularDataset.from_parquet(path, ["ids"], to_dense={"idz": [5]}).batch(32)


def test_rows_come_one_by_one_without_batch(path):
    rows = list(TabularDataset.from_parquet(path, ["id", "ids"]))
    assert [int(row["id"]) for row in rows] == list(range(ROWS))
    assert rows[3]["ids"].values.numpy().tolist() == [30, 31, 32]


def test_one_row_batches_become_rows(path):
    row = list(FrameDataset(path, 1, ["id", "ids", "nested"]).apply(unbatch_and_to_sparse()))[7]
    assert row["ids"].values.numpy().tolist() == [70, 71, 72] and row["ids"].dense_shape.numpy().tolist() == [3]
    assert tf.RaggedTensor.from_sparse(row["nested"]).to_list() == [[7], [], [7, 8]]


# Promise (hybridbackend.md): as many as the batch has, in every file and in the last batch (HybridBackend, a wrong
# result: rows of default values do not fit the last batch).
def test_defaults_have_as_many_rows_as_their_batch(path):
    sparse = tf.SparseTensor([[1]], [5], [3])
    fields = ["id", Field("x", tf.int64, default_value=42), Field("v", tf.float32, default_value=[1.0, 2.0])]
    batches = list(TabularDataset.from_parquet(path, [*fields, Field("s", tf.int32, default_value=sparse)]).batch(32))
    for batch, rows in zip(batches, [32, 32, 32, 4], strict=True):
        assert batch["x"].numpy().tolist() == [42] * rows
        np.testing.assert_array_equal(batch["v"], [[1.0, 2.0]] * rows)
        np.testing.assert_array_equal(tf.sparse.to_dense(batch["s"]), [[0, 5, 0]] * rows)
    filled = DataFrame.populate_defaults({}, [Field("x", tf.int64, default_value=3)], 2)
    assert filled["x"].numpy().tolist() == [3, 3]
    assert callable(populate_defaults([], 2))


def test_duplicates_are_restored_from_blocks_of_different_lengths(tmp_path):
    # Blocks of 3, 1 and 0 rows.
    table = pa.table(
        {
            "user": [[[1], [2, 3]], [[4]], []],
            "score": [[0.5, 1.5], [2.5], []],
            "user_idx": pa.array([[1, 0, 1], [0], []], pa.list_(pa.int32())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    names = (["user_idx"], [["user", "score"]])
    dataset = TabularDataset.from_parquet(
        str(tmp_path / "a.parquet"), key_idx_field_names=names[0], value_field_names=names[1]
    ).batch(3)
    batch = next(iter(dataset))
    assert sorted(batch) == ["score", "user"]
    assert _plain(batch["user"]) == [[2, 3], [1], [2, 3], [4]]
    assert batch["score"].numpy().tolist() == [1.5, 0.5, 1.5, 2.5]
    with pytest.raises(ValueError, match="field 'z' does not exist"):
        FrameDataset(str(tmp_path / "a.parquet"), 1).apply(deduplicate(["z"], [["user"]]))
    with pytest.raises(ValueError, match="key_idx_field_names and value_field_names: wanted both or none"):
        TabularDataset.from_parquet(str(tmp_path / "a.parquet"), key_idx_field_names=["user_idx"])


def test_an_index_outside_of_its_block_is_an_error(tmp_path):
    pq.write_table(pa.table({"v": [[1, 2], [3]], "i": [[0, 2], [0]]}), tmp_path / "a.parquet")
    dataset = FrameDataset(str(tmp_path / "a.parquet"), 2).apply(deduplicate(["i"], [["v"]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside of its block"):
        list(dataset)


def _shuffled(path, passes=1, **arguments):
    dataset = TabularDataset.from_parquet(path, ["id", "ids", "text"]).shuffle_batch(10, **arguments)
    return [[row[0] for row in _rows(dataset)] for _ in range(passes)], dataset


def test_shuffled_batches_are_the_same_rows_in_another_order(path):
    (ids,), dataset = _shuffled(path, buffer_size=40, seed=3)
    assert sorted(ids) == list(range(ROWS)) and ids != sorted(ids)
    for row in _rows(dataset):
        assert row == (row[0], [10 * row[0] + j for j in range(row[0] % 4)], f"row {row[0]}")
    # Each batch is drawn from the next 40 + 10 rows.
    assert all(row < 50 + 10 * (place // 10) for place, row in enumerate(ids))


# Promise (hybridbackend.md): each pass has a new, reproducible order; `False` repeats the first (HybridBackend, a wrong
# result: shuffles repeat in every epoch, and `reshuffle_each_iteration` has no effect).
def test_each_pass_shuffles_differently_and_each_run_alike(path):
    (first, second), _ = _shuffled(path, 2, buffer_size=40, seed=3)
    assert first != second
    assert _shuffled(path, 2, buffer_size=40, seed=3)[0] == [first, second]
    assert _shuffled(path, 1, buffer_size=40, seed=4)[0] != [first]
    same = _shuffled(path, 2, buffer_size=40, seed=3, reshuffle_each_iteration=False)[0]
    assert same[0] == same[1]


# Promise (hybridbackend.md): each pass has a new, reproducible order; `False` repeats the first (HybridBackend, a wrong
# result: shuffles repeat in every epoch, and `reshuffle_each_iteration` has no effect).
def test_passes_of_an_initializable_iterator_shuffle_differently(path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = TabularDataset.from_parquet(path, ["id"]).shuffle_batch(100, buffer_size=100, seed=3)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        element = iterator.get_next()["id"]
        passes = []
        for _ in range(2):
            session.run(iterator.initializer)
            passes.append(session.run(element).tolist())
    assert passes[0] != passes[1] and sorted(passes[0]) == sorted(passes[1])


@pytest.mark.parametrize("batches", [0, 1, 4, 10, 13])
def test_a_shuffles_position_is_saved_and_restored_across_passes(path, tmp_path, batches):
    def iterator():
        dataset = TabularDataset.from_parquet(path, ["id", "ids", "text"])
        return iter(dataset.shuffle_batch(10, buffer_size=40, seed=3).repeat(2))

    first = iterator()
    for _ in range(batches):
        next(first)
    saved = tf.train.Checkpoint(iterator=first).write(str(tmp_path / "checkpoint"))
    rest = _rows(first)
    restored = iterator()
    tf.train.Checkpoint(iterator=restored).read(saved).assert_consumed()
    assert _rows(restored) == rest and len(rest) == 2 * ROWS - 10 * batches


def test_draws_do_not_depend_on_the_batches_that_come_in(path):
    drawn = [
        [row[0] for row in _rows(RebatchDataset(FrameDataset(path, size, ["id"]), None, 10, False, 40, 3))]
        for size in (1, 9, 100)
    ]
    assert drawn[0] == drawn[1] == drawn[2]


def test_names_are_found_whatever_their_case_and_fields_may_be_mapped(tmp_path):
    pq.write_table(pa.table({"Abc": [1, 2], "d": [3, 4]}), tmp_path / "a.parquet")
    dataset = TabularDataset.from_parquet(str(tmp_path / "a.parquet"), ["ABC", "D"], field_ignore_case=True)
    assert sorted(next(iter(dataset.batch(2)))) == ["Abc", "d"]
    mapped = TabularDataset.from_parquet(str(tmp_path / "a.parquet"), field_map_fn=lambda fields: fields[1:])
    assert sorted(next(iter(mapped.batch(2)))) == ["d"]


def test_file_names_may_come_from_a_dataset(path):
    names = tf.data.Dataset.from_tensor_slices([path, path])
    dataset = names.apply(read_parquet(64, [Field("id", tf.int64, 0)], num_parallel_reads=tf.data.AUTOTUNE))
    assert [row[0] for row in _rows(dataset)] == 2 * list(range(ROWS))


def test_an_empty_batch_of_values_has_no_rows(path):
    spec = FrameDataset(path, 4).element_spec
    empty = sync.empty(spec)
    assert all(_plain(value) == [] for value in empty.values())
    tf.nest.assert_same_structure(empty, spec)
    assert _plain(DataFrame.parse(empty)["ids"]) == []


def test_parse_refuses_values_that_are_no_columns():
    with pytest.raises(ValueError, match="is not a column"):
        next(iter(tf.data.Dataset.range(1).batch(1).map(lambda i: DataFrame.parse({"a": "x", "b": i}))))
    assert callable(parse())


def test_the_validator_names_the_difference(tmp_path):
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [1.0]}), tmp_path / "b.parquet")
    command = [sys.executable, "-m", "hybridbackend.tensorflow.data.validate"]
    paths = [str(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    good = subprocess.run([*command, "--peek", "1", paths[0]], capture_output=True, text=True, timeout=500, check=False)
    assert good.returncode == 0 and "1 rows read" in good.stderr
    bad = subprocess.run([*command, *paths], capture_output=True, text=True, timeout=500, check=False)
    assert bad.returncode == 1 and "field 'a': dtype is <dtype: 'float64'>" in bad.stderr
