"""Tests of the rows that a shard holds, in both placements."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.tables.sharded import Shard, relayout
from lockstep.testing import call_workers


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 12])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_shards_hold_every_row_once(workers, rows):
    shards = [Shard(rows, rank, workers) for rank in range(workers)]
    table = np.arange(rows)
    assert sorted(np.concatenate([s.pick(table) for s in shards])) == list(table)
    assert [len(s.pick(table)) for s in shards] == [s.local_rows for s in shards]
    ranges = [table[offset : offset + length] for offset, length in (s.contiguous_range for s in shards)]
    assert list(np.concatenate(ranges)) == list(table)


DTYPES = ("float32", "bfloat16", "int64", "bool")


def relay_on_worker(rows):
    context.ensure_initialized()
    shard = Shard(rows, context.rank, context.world_size)
    offset, length = shard.contiguous_range
    for shape in ([rows], [rows, 3]):
        for dtype in DTYPES:
            table = tf.cast(tf.reshape(tf.range(np.prod(shape)), shape) % 256, dtype)
            modulo, contiguous = shard.pick(table), table[offset : offset + length]
            there = relayout(modulo, rows, to_contiguous=True)
            back = relayout(contiguous, rows, to_contiguous=False)
            np.testing.assert_array_equal(there.numpy(), contiguous.numpy())
            np.testing.assert_array_equal(back.numpy(), modulo.numpy())
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank 0: .*wants .* the table has {rows}"):
        relayout(tf.zeros([shard.local_rows + (context.rank == 0), 2]), rows, to_contiguous=True)


@pytest.mark.parametrize(("workers", "rows"), [(1, 5), (2, 9), (3, 2), (4, 101)])
def test_relayout_moves_rows_of_any_kind_both_ways(workers, rows):
    call_workers(functools.partial(relay_on_worker, rows), workers)
