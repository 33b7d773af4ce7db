"""Loops in eager mode over shares of different sizes end on all workers together."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from lockstep._src.collectives.ordered import allreduce
from lockstep._src.data.parquet import ParquetDataset
from lockstep._src.data.sharing import shard
from lockstep._src.data.tabular import FrameDataset
from lockstep._src.engine.context import context
from lockstep._src.scope import scope
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

_BATCH_ROWS = 10
# The rows of each row group: worker 0 reads the first group, worker 1 the others.
_GROUPS = (40, 35, 30)


@pytest.fixture(name="path")
def _path(tmp_path):
    path = str(tmp_path / "data.parquet")
    table = pa.table({"x": np.arange(sum(_GROUPS), dtype=np.float32) ** 2})
    with pq.ParquetWriter(path, table.schema) as writer:
        start = 0
        for rows in _GROUPS:
            writer.write_table(table.slice(start, rows), row_group_size=rows)
            start += rows
    return path


def _loops(path):
    """Returns, on a worker, the batches of several loops, each with the result of an exchange in its step."""

    def steps(dataset):
        taken = []
        for x in dataset:
            total = allreduce(tf.reduce_sum(x), op="sum", name="total")
            taken.append((x.numpy(), total.numpy()))
        return taken

    def read():
        return FrameDataset([path], _BATCH_ROWS, partition_by="row_groups")

    results = {}
    with scope():
        plain = ParquetDataset([path], _BATCH_ROWS, partition_by="row_groups").map(lambda row: row["x"])
        results["first epoch"] = steps(plain)
        results["second epoch"] = steps(plain)
        results["transformed"] = steps(read().map(lambda row: row["x"]).prefetch(2))
        iterator = iter(read())
        results["by next"] = steps(row["x"] for row in iterator)
        results["as numpy"] = steps(tf.constant(x) for x in plain.as_numpy_iterator())
        rank = context.rank
        results["share"] = len(list(shard(tf.data.Dataset.range(5))))
        # A dataset that is not a share: each worker may take all of it, ...
        results["others"] = len(list(tf.data.Dataset.range(3 + rank)))
        # ... or only a part.
        results["alone"] = []
        if rank == 0:
            for kind in (ParquetDataset, FrameDataset):
                results["alone"].append(len(list(kind([path], _BATCH_ROWS, partition_count=1).prefetch(1))))
    with scope(data_sync_drop_remainder=False):
        results["to the last"] = steps(plain)
    with scope(mode="eval"):
        results["evaluation"] = steps(plain)
    results["outside"] = len(list(plain))
    # Outside the scope, or with mode='infer', one worker may look into its share by itself, ...
    results["looks"] = []
    if rank == 0:
        results["looks"].append(next(iter(plain.take(1))).numpy())
        with scope(mode="infer"):
            results["looks"].append(next(iter(plain.take(1))).numpy())
    # ... and it is an error on all workers in a scope, where all must take batches together.
    with scope(), pytest.raises(tf.errors.FailedPreconditionError) as refused:
        if rank == 0:
            next(iter(plain.take(1)))
        else:
            allreduce(tf.ones([]), op="sum", name="total")
    results["refused"] = str(refused.value)
    return results


def test_loops_over_unequal_shares_end_together(path):
    values = np.arange(sum(_GROUPS), dtype=np.float32) ** 2
    shares = np.split(values, _GROUPS[:1])
    batches = [[share[i : i + _BATCH_ROWS] for i in range(0, len(share), _BATCH_ROWS)] for share in shares]
    short, long = sorted(map(len, batches))
    assert short < long
    none = np.zeros(0, np.float32)
    padded = [own + [none] * (long - len(own)) for own in batches]
    wanted_steps = {"to the last": long, "evaluation": long}
    for rank, results in enumerate(call_workers(_loops, 2, path, timeout_s=240)):
        assert results.pop("others") == 3 + rank
        assert results.pop("alone") == ([] if rank else [math.ceil(sum(_GROUPS) / _BATCH_ROWS)] * 2)
        assert results.pop("share") == 2
        assert results.pop("outside") == len(batches[rank])
        np.testing.assert_array_equal(results.pop("looks"), [] if rank else [batches[0][0]] * 2)
        called = "rank 0 called allreduce 'next batch of a dataset (all ranks inside scope(), one rank outside"
        assert called in results.pop("refused")
        for name, taken in results.items():
            wanted = [own[: wanted_steps.get(name, short)] for own in padded]
            assert len(taken) == len(wanted[rank]), name
            for (x, total), *everyones in zip(taken, *wanted, strict=True):
                np.testing.assert_array_equal(x, everyones[rank], err_msg=name)
                np.testing.assert_allclose(total, sum(batch.sum() for batch in everyones), err_msg=name)
