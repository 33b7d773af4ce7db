"""Tests of the rows that a shard holds, in both placements."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.tables.sharded import Shard


@pytest.mark.pairwise
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
