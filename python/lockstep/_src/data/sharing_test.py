"""Shares of datasets, and fingerprints of batches. For several workers see tests/multiprocess."""

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


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_datasets_know_whether_they_are_a_share(path, mode):
    with tf.Graph().as_default() if mode == "graph" else contextlib.nullcontext():
        numbers, names = tf.data.Dataset.range(8), tf.data.Dataset.from_tensors(path)
        for dataset in (
            ParquetDataset(path, 2),
            ParquetDataset(path, 2).map(lambda batch: batch["x"]).repeat(2).prefetch(1),
            ParquetDataset(path, 2, partition_count=3, partition_index=1),
            ParquetDataset(names, 2, [FrameDataset.read_schema(path, ["x"])[0]]),
            ParquetDataset(path, 2, None, tf.constant(3, tf.int64), tf.constant(1, tf.int64)),
            FrameDataset(path, 2),
            TabularDataset.from_parquet(path, ["x"]),
            TabularDataset.from_parquet(path).shuffle_batch(2, seed=1),
            ParquetDataset(path, 2).apply(rebatch(3)),
            numbers.shard(2, 0).batch(2),
            tf.data.Dataset.zip((numbers, numbers.shard(2, 1))),
        ):
            assert is_share(dataset)
        for data in (
            numbers.shuffle(3).batch(2),
            numbers.shard(1, 0),
            ParquetDataset(path, 2, partition_count=1),
            ParquetDataset(path, 2, None, tf.constant(1, tf.int64), tf.constant(0, tf.int64)),
            TabularDataset.from_parquet(path, partition_count=1).batch(2),
            [1, 2],
            None,
        ):
            assert not is_share(data)


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
