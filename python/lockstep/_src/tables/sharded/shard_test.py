"""Tests of the rows that a shard holds, in both placements."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.tables.sharded import Shard, relayout
from lockstep.testing import call_workers


@pytest.mark.parametrize("block", [1, 2, 100])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 12])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_shards_hold_every_row_once(workers, rows, block):
    for first in range(workers):
        shards = [Shard(rows, rank, workers, block, first) for rank in range(workers)]
        table = np.arange(rows)
        assert sorted(np.concatenate([s.pick(table) for s in shards])) == list(table)
        assert [list(s.pick(tf.constant(table))) for s in shards] == [list(s.pick(table)) for s in shards]
        assert [len(s.pick(table)) for s in shards] == [s.local_rows for s in shards]
        ranges = [table[offset : offset + length] for offset, length in (s.contiguous_range for s in shards)]
        assert list(np.concatenate(ranges[first:] + ranges[:first])) == list(table)


def test_a_whole_table_is_on_one_worker():
    shards = [Shard(7, rank, 3, block=7, first=1) for rank in range(3)]
    assert [s.local_rows for s in shards] == [0, 7, 0]
    assert shards[1].contiguous_range == (0, 7)


DTYPES = ("float32", "bfloat16", "int64", "bool")


def relay_on_worker(rows, block, first):
    context.ensure_initialized()
    shard = Shard(rows, context.rank, context.world_size, block, first)
    offset, length = shard.contiguous_range
    for shape in ([rows], [rows, 3]):
        for dtype in DTYPES:
            table = tf.cast(tf.reshape(tf.range(np.prod(shape)), shape) % 256, dtype)
            own, contiguous = shard.pick(table), table[offset : offset + length]
            there = relayout(own, shard, to_contiguous=True)
            back = relayout(contiguous, shard, to_contiguous=False)
            np.testing.assert_array_equal(there.numpy(), contiguous.numpy())
            np.testing.assert_array_equal(back.numpy(), own.numpy())
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank 0: .*wants .* the table has {rows}"):
        relayout(tf.zeros([shard.local_rows + (context.rank == 0), 2]), shard, to_contiguous=True)


@pytest.mark.parametrize(
    ("workers", "rows", "block", "first"),
    [(1, 5, 1, 0), (2, 9, 1, 0), (2, 9, 9, 1), (3, 2, 1, 0), (3, 20, 3, 2), (4, 101, 1, 0)],
)
def test_relayout_moves_rows_of_any_kind_both_ways(workers, rows, block, first):
    call_workers(functools.partial(relay_on_worker, rows, block, first), workers)


def relay_with_another_placement_on_each_rank():
    context.ensure_initialized()
    shard = Shard(4, context.rank, 2, block=1, first=context.rank)
    relayout(tf.zeros([2, 3]), shard, to_contiguous=True)


def test_workers_that_place_a_table_differently_get_an_error():
    with pytest.raises(Exception, match="in blocks of 1 from rank 1 on"):
        call_workers(relay_with_another_placement_on_each_rank, 2)
