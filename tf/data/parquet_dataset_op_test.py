"""Tests of LockstepParquetDataset against pyarrow; tests of datasets made with it are in python/lockstep/_src/data."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from lockstep._src.data.filters import conjunctions, encode
from lockstep._src.engine.library import ops

ROWS = 20
# An element's tensors: numbers, and the values and splits of lists.
SPECS = (tf.TensorSpec([None], tf.int64),) + (tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.int64))
FIELDS = {
    "field_names": ["i", "list"],
    "field_types": [tf.int64, tf.float32],
    "field_ragged_ranks": [0, 1],
    "field_shapes": [[], []],
    "field_has_defaults": [False, False],
    "field_defaults": ["", ""],
}


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "a.parquet"
    lists = pa.array([[float(i)] * (i % 3) for i in range(ROWS)], pa.list_(pa.float32()))
    pq.write_table(pa.table({"i": pa.array(range(ROWS)), "list": lists}), path, row_group_size=6)
    return str(path)


def parquet(paths, size=8, count=1, index=0, specs=SPECS, **more):
    variant = ops.lockstep_parquet_dataset(
        tf.constant(paths),
        tf.constant(size, tf.int64),
        tf.constant(count, tf.int64),
        tf.constant(index, tf.int64),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
        **{**FIELDS, **more},
    )
    return dataset_ops._VariantDataset(variant, specs)


def rows_of(dataset):
    """Returns the numbers of each batch, and asserts that each row has its list."""
    found = []
    for numbers, values, splits in dataset.as_numpy_iterator():
        found.append(numbers.tolist())
        lists = [values[begin:end].tolist() for begin, end in zip(splits, splits[1:], strict=False)]
        assert lists == [[float(i)] * (i % 3) for i in numbers]
    return found


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("num_sequential_reads", [1, 2])
def test_batches_are_the_files_rows_in_order(path, drop_remainder, num_sequential_reads):
    wanted = pq.read_table([path])["i"].to_pylist()
    got = rows_of(parquet([path], drop_remainder=drop_remainder, num_sequential_reads=num_sequential_reads))
    assert got == [wanted[:8], wanted[8:16]] + [wanted[16:]] * (not drop_remainder)
    assert sorted(sum(rows_of(parquet([path, path])), [])) == sorted(wanted * 2)


@pytest.mark.parametrize("partition_by", ["rows", "row_groups", "batches"])
def test_the_parts_are_the_whole(path, partition_by):
    parts = [sum(rows_of(parquet([path], count=3, index=i, partition_by=partition_by)), []) for i in range(3)]
    assert sorted(sum(parts, [])) == list(range(ROWS)) and all(parts)


def test_rows_are_filtered(path):
    table = pq.read_table(path, filters=[("i", ">", 5), ("i", "<=", 15)])
    filters = encode(conjunctions([("i", ">", 5), ("i", "<=", 15)]))
    assert sum(rows_of(parquet([path], filters=filters)), []) == table["i"].to_pylist()


def test_the_position_is_saved_and_restored(path, tmp_path):
    iterator = iter(parquet([path], size=3))
    for _ in range(4):
        next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "position")
    iterator = iter(parquet([path], size=3))
    tf.train.Checkpoint(iterator=iterator).restore(saved)
    assert [batch[0].numpy().tolist() for batch in iterator] == [[12, 13, 14], [15, 16, 17], [18, 19]]
    with pytest.raises(tf.errors.FailedPreconditionError, match="the saved position belongs to other data"):
        tf.train.Checkpoint(iterator=iter(parquet([path], size=5))).restore(saved)


def test_a_default_stands_for_a_column_that_a_file_lacks(path):
    default = {
        "field_names": ["i", "weight"],
        "field_types": [tf.int64, tf.float32],
        "field_ragged_ranks": [0, 0],
        "field_has_defaults": [False, True],
        "field_defaults": [b"", np.float32(2.5).tobytes()],
    }
    specs = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.float32))
    batches = list(parquet([path], specs=specs, **default))
    np.testing.assert_array_equal(tf.concat([batch[1] for batch in batches], 0), np.full(ROWS, 2.5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 0}, "batch_size"),
        ({"count": 0}, "partition"),
        ({"count": 2, "index": 2}, "partition"),
        ({"count": 2, "index": -1}, "partition"),
        ({"field_names": ["i"]}, "the lists that describe fields differ in length"),
        ({"field_ragged_ranks": [1, 1]}, "the fields have 4 tensors, but there are 3 output types"),
        ({"field_types": [tf.int64, tf.complex64]}, "field 'list': a column cannot have dtype complex64"),
        ({"field_shapes": [[], [None]]}, r"field 'list': shape \[\?\] is not fully known"),
        ({"filters": ["no filter"]}, "filter"),
        ({"checksums": ["no checksum"]}, "checksum"),
    ],
)
def test_wrong_arguments_are_refused(path, changes, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(parquet([path], **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"field_types": [tf.string, tf.float32]}, "column 'i'|'i'"),
        ({"field_names": ["missing", "list"]}, "'missing'"),
    ],
)
def test_a_file_that_does_not_fit_is_named(path, changes, message):
    specs = (tf.TensorSpec([None], changes.get("field_types", [tf.int64])[0]), *SPECS[1:])
    with pytest.raises(tf.errors.OpError, match=f"(?s){path}.*{message}|{message}.*{path}"):
        list(parquet([path], specs=specs, **changes))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(tf.errors.NotFoundError, match="missing.parquet"):
        list(parquet([f"{tmp_path}/missing.parquet"]))
