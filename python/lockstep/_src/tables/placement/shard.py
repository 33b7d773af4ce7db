"""The rows of a table that a worker holds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Shard:
    """One worker's part of a table of `rows` rows. Blocks of rows are dealt to the workers in turn.

    | placement | rows of worker `rank` |
    | --- | --- |
    | by rows, the default | `rank`, `rank + world_size`, `rank + 2 * world_size`, ... |
    | `block` = `rows` | all rows on worker `first`, none on others |

    `core/sharding/placement.h` has the same arithmetic.

    Attributes:
      rows: the number of rows of the whole table.
      rank: the worker.
      world_size: the number of workers.
      block: the number of rows of a block, at least 1.
      first: the worker of the first block.
    """

    rows: int
    rank: int
    world_size: int
    block: int = 1
    first: int = 0

    @property
    def local_rows(self) -> int:
        """The number of rows that the worker holds; 0 on some workers if there are fewer rows than workers."""
        turns, rest = divmod(self.rows, self.block * self.world_size)
        return turns * self.block + min(max(rest - self._turn * self.block, 0), self.block)

    @property
    def contiguous_range(self) -> tuple[int, int]:
        """The first row and the number of rows that the worker writes to a checkpoint."""
        turns, rest = divmod(self.rows, self.block * self.world_size)
        before = self._turn * self.block
        return turns * before + min(rest, before), self.local_rows

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes that tell operations on whole tables where rows are."""
        return {"num_rows": self.rows, "block": self.block, "first_rank": self.first}

    def pick(self, table: Any) -> Any:
        """Returns the worker's rows of a whole table [rows, ...], a tensor or an array."""
        if self.block == 1:
            return table[self._turn :: self.world_size]
        if self.block >= self.rows:
            return table if self._turn == 0 else table[:0]
        ids = np.arange(self.rows)
        own = ids[ids // self.block % self.world_size == self._turn]
        return table[own] if isinstance(table, np.ndarray) else tf.gather(table, own)

    @property
    def _turn(self) -> int:
        """The block of each turn that the worker gets, from 0 on."""
        return (self.rank - self.first) % self.world_size
