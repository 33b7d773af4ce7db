"""Estimates of a table's work in a training step, in nanoseconds, from its size and the ids that are looked up.

The constants are estimates for a server's processor. They need not be exact: the planner compares placements and
workers with each other, and all have the same constants.
"""

from __future__ import annotations

import dataclasses
import math

# An id: its place among the distinct ones is found, and its row is put in place.
_ID = 10.0
# A row that is read or changed: a place in memory that is in no cache.
_ROW = 30.0
# A byte that is copied or computed with.
_BYTE = 0.15
# A byte that goes to another worker: packed, copied, and put in place.
_SENT_BYTE = 0.6
# A table's part of an exchange: its counts, and its share of the operations.
_TABLE = 4000.0


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of a table: its rows, and the bytes of one row."""

    rows: int
    row_bytes: int


def expected_distinct(ids: float, rows: int) -> float:
    """Returns how many distinct ids `ids` uniform draws out of `rows` have; skewed draws have fewer."""
    return rows * -math.expm1(-ids / rows) if rows else 0.0


def asking(size: Size, ids: float, distinct: float) -> float:
    """Returns the work of a worker that looks up `ids` in a step, of which `distinct` are distinct."""
    return ids * (_ID + size.row_bytes * _BYTE) + distinct * size.row_bytes * 2 * _BYTE


def serving(size: Size, rows: float) -> float:
    """Returns the work of a worker whose rows are read and updated: `rows` of them in a step, for all workers."""
    # The row itself, its gradient, and a slot of the optimizer.
    return rows * (2 * _ROW + size.row_bytes * 4 * _BYTE)


def by_rows(size: Size, ids: float, workers: int) -> float:
    """Returns the work of each worker for a table that is placed by rows, if each looks up `ids` in a step."""
    distinct = expected_distinct(ids, size.rows)
    away = distinct * (workers - 1) / workers
    sent = 2 * away * (8 + 2 * size.row_bytes) * _SENT_BYTE
    return _TABLE + asking(size, ids, distinct) + serving(size, distinct) + sent


def replicated(size: Size, ids: float, workers: int) -> float:
    """Returns the work of each worker for a replicated table: gradients of all workers come to each, which updates."""
    distinct = expected_distinct(ids, size.rows)
    sent = (workers - 1) * distinct * (8 + size.row_bytes) * 2 * _SENT_BYTE
    return asking(size, ids, distinct) + serving(size, workers * distinct) + sent
