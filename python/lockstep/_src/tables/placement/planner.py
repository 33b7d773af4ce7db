"""Decides where the rows of a table are, when the table is made.

All workers make the same tables in the same order, and decide alike. A table of a known name keeps its place.
So graphs for training and evaluation agree, also if only one worker makes some of them.

| said | decided |
| --- | --- |
| 'rows' | by rows, from worker 0 on |
| 'replicated' | replicated |
| 'worker' | whole, on the worker with the least work so far |
| 'auto' | replicated, if the estimates (`costs.py`) say that this costs less, up to 16 MiB in all |
| | else whole, like 'worker', if workers would have less than two rows each |
| | else by rows; tables begin on different workers, since the first row often is the most frequent |

The exchanges of all tables are grouped. So a table of its own costs little more than its rows, and replication seldom
pays: a replicated row is updated by each worker.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from lockstep._src.engine.context import context
from lockstep._src.engine.placements import Wish
from lockstep._src.tables.placement import costs
from lockstep._src.tables.placement.shard import Shard

# The ids that a worker is expected to look up in a step, without other information.
_EXPECTED_IDS = 1024
# The memory that 'auto' may spend on replicated tables on each worker.
_REPLICATED_BYTES = 16 << 20


@dataclasses.dataclass
class PlacedTable:
    """A table and the place of its rows.

    Attributes:
      name: the table's name, as in checkpoints.
      size: its rows, and the bytes of a row.
      width: the numbers of a row.
      kind: 'rows', 'worker' or 'replicated'.
      block: see `Shard`.
      first: see `Shard`.
      ids: the ids that each worker is expected to look up in a step.
      slots: the bytes of a row's slots in optimizers.
      variables: the table's variables in one or several graphs, as long as they live, by their identity.
    """

    name: str
    size: costs.Size
    width: int
    kind: str
    block: int
    first: int
    ids: float
    slots: int = 0
    variables: weakref.WeakValueDictionary[int, Any] = dataclasses.field(
        default_factory=weakref.WeakValueDictionary, repr=False, compare=False
    )

    @property
    def placement(self) -> str:
        """The placement, as the option `placement` has it."""
        if self.kind == "worker":
            return f"worker:{self.first}"
        return f"rows:{self.block}" if self.kind == "rows" and self.block > 1 else self.kind

    def rows_of(self, rank: int, workers: int) -> int:
        """Returns the number of the rows that a worker holds."""
        if self.kind == "replicated":
            return self.size.rows
        return Shard(self.size.rows, rank, workers, self.block, self.first).local_rows

    def served_by(self, rank: int, workers: int) -> float:
        """Returns the number of rows that a worker is expected to read for all workers in a step."""
        distinct = costs.expected_distinct(self.ids, self.size.rows)
        if self.kind == "replicated":
            return distinct
        return workers * distinct * self.rows_of(rank, workers) / max(1, self.size.rows)

    def work(self, rank: int, workers: int) -> float:
        """Returns the expected work of a worker for this table, in nanoseconds per step."""
        if self.kind == "replicated":
            return costs.replicated(self.size, self.ids, workers)
        if self.kind == "rows":
            return costs.by_rows(self.size, self.ids, workers)
        distinct = costs.expected_distinct(self.ids, self.size.rows)
        return costs.asking(self.size, self.ids, distinct) + costs.serving(self.size, self.served_by(rank, workers))


class Planner:
    """The tables of a job of `workers` workers, and the decisions about them."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.tables: dict[str, PlacedTable] = {}

    def place(self, name: str, rows: int, width: int, row_bytes: int, wish: Wish) -> PlacedTable:
        """Returns the place of a table, which is remembered.

        Args:
          name: the table's name.
          rows: the number of its rows.
          width: the numbers of a row.
          row_bytes: the bytes of a row.
          wish: what the program said.

        Raises:
          ValueError: the program named a worker that the job has not.
        """
        size = costs.Size(rows, row_bytes)
        ids = float(wish.ids if wish.ids is not None else context.options.batch_size or _EXPECTED_IDS)
        if wish.kind == "worker" and wish.number is not None and wish.number >= self.workers:
            raise ValueError(
                f"table '{name}': got the placement 'worker:{wish.number}', but the job has {self.workers} worker(s)"
            )
        before = self.tables.get(name)
        if before is not None and before.size == size and (self.workers == 1 or self._is_as_said(before, wish)):
            return before
        self.tables.pop(name, None)
        kind, block, first = self._decide(size, ids, wish)
        placed = PlacedTable(name, size, width, kind, block, first, ids)
        self.tables[name] = placed
        return placed

    def _is_as_said(self, table: PlacedTable, wish: Wish) -> bool:
        if wish.kind == "auto":
            return True
        if wish.kind == "rows":
            return table.kind == "rows" and table.block == (wish.number or 1) and table.first == 0
        return table.kind == wish.kind and wish.number in (None, table.first)

    def _decide(self, size: costs.Size, ids: float, wish: Wish) -> tuple[str, int, int]:
        """Returns kind, block and first worker."""
        whole = max(1, size.rows)
        if wish.kind == "replicated":
            return "replicated", 1, 0
        if self.workers == 1 or wish.kind == "rows":
            return "rows", wish.number if wish.kind == "rows" and wish.number else 1, 0
        if wish.kind == "worker":
            return "worker", whole, self._idlest() if wish.number is None else wish.number
        replicated = sum(t.size.rows * t.size.row_bytes for t in self.tables.values() if t.kind == "replicated")
        fits = replicated + size.rows * size.row_bytes <= _REPLICATED_BYTES
        if fits and costs.replicated(size, ids, self.workers) < costs.by_rows(size, ids, self.workers):
            return "replicated", 1, 0
        if size.rows < 2 * self.workers:
            return "worker", whole, self._idlest()
        return "rows", 1, sum(table.kind == "rows" for table in self.tables.values()) % self.workers

    def _idlest(self) -> int:
        work = [sum(t.work(rank, self.workers) for t in self.tables.values()) for rank in range(self.workers)]
        return min(range(self.workers), key=lambda rank: (work[rank], rank))


_planner = Planner(1)


def planner() -> Planner:
    """Returns the planner of this process; a job of another size gets a new one."""
    global _planner
    if _planner.workers != context.world_size:
        _planner = Planner(context.world_size)
    return _planner


def note_slot(table: str, row_bytes: int) -> None:
    """Notes that an optimizer has a slot for each row of a table, for `lockstep.plan`."""
    placed = planner().tables.get(table)
    if placed is not None:
        placed.slots += row_bytes
