"""Shares of datasets, and fingerprints of batches. For several workers see tests/multiprocess/scope/scope_worker.py."""

import contextlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from lockstep._src.data.sharing import fingerprint, is_share, shard
from lockstep._src.engine.context import context
from lockstep.data import FrameDataset, ParquetDataset, TabularDataset, rebatch

pytestmark = pytest.mark.oldest


@pytest.fixture(name="path")
def _path(tmp_path):
    pq.write_table(pa.table({"x": range(8), "list": [[i] for i in range(8)]}), tmp_path / "a.parquet")
    return str(tmp_path / "a.parquet")


def _numbers():
    return tf.data.Dataset.range(8)


def _of_names(path):
    return ParquetDataset(tf.data.Dataset.from_tensors(path), 2, [FrameDataset.read_schema(path, ["x"])[0]])


def _by_tensors(path, count, index):
    return ParquetDataset(path, 2, None, tf.constant(count, tf.int64), tf.constant(index, tf.int64))


_SHARES = {
    "files": lambda path: ParquetDataset(path, 2),
    "transformed": lambda path: ParquetDataset(path, 2).map(lambda batch: batch["x"]).repeat(2).prefetch(1),
    "one of three": lambda path: ParquetDataset(path, 2, partition_count=3, partition_index=1),
    "names of a dataset": _of_names,
    "one of three, by tensors": lambda path: _by_tensors(path, 3, 1),
    "frames": lambda path: FrameDataset(path, 2),
    "table": lambda path: TabularDataset.from_parquet(path, ["x"]),
    "shuffled table": lambda path: TabularDataset.from_parquet(path).shuffle_batch(2, seed=1),
    "rebatched": lambda path: ParquetDataset(path, 2).apply(rebatch(3)),
    "tf.data's shard": lambda path: _numbers().shard(2, 0).batch(2),
    "zipped": lambda path: tf.data.Dataset.zip((_numbers(), _numbers().shard(2, 1))),
}
_WHOLES = {
    "tf.data": lambda path: _numbers().shuffle(3).batch(2),
    "the only shard": lambda path: _numbers().shard(1, 0),
    "the only part": lambda path: ParquetDataset(path, 2, partition_count=1),
    "the only part, by tensors": lambda path: _by_tensors(path, 1, 0),
    "the only part of a table": lambda path: TabularDataset.from_parquet(path, partition_count=1).batch(2),
    "list": lambda path: [1, 2],
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize(
    ("make", "share"),
    [*((make, True) for make in _SHARES.values()), *((make, False) for make in _WHOLES.values())],
    ids=[*_SHARES, *_WHOLES],
)
def test_datasets_know_whether_they_are_a_share(path, make, share, mode):
    with tf.Graph().as_default() if mode == "graph" else contextlib.nullcontext():
        assert is_share(make(path)) == share


def test_one_worker_reads_everything():
    context.ensure_initialized()
    dataset = tf.data.Dataset.range(3).shuffle(3)
    assert shard(dataset) is dataset
    with pytest.raises(TypeError, match="shard: got list, wanted a tf.data.Dataset"):
        shard([1, 2])


def test_batches_of_other_values_types_or_structures_have_other_fingerprints():
    ragged = tf.ragged.constant([[1], [], [2, 3]])
    batches = [
        tf.constant([1, 2]),
        tf.constant([1, 3]),
        tf.constant([1, 2], tf.int64),
        tf.constant([[1, 2]]),
        tf.constant(["1", "2"]),
        tf.constant(["12", ""]),
        {"x": tf.constant([1, 2]), "y": tf.constant([1, 2])},
        ragged,
        tf.ragged.constant([[1], [2], [3]]),
        ragged.to_sparse(),
        (tf.constant([1.0]), None),
        tf.zeros([0]),
    ]
    assert len({fingerprint(batch) for batch in batches}) == len(batches)
    assert all(fingerprint(batch) == fingerprint(tf.nest.map_structure(tf.identity, batch)) for batch in batches[:10])
    assert min(map(fingerprint, batches)) > 0
