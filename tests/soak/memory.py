"""Growth of the workers' memory, from the sizes that they report at regular steps (`program.py --weigh`)."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

# A life has settled after this share of it: tables have all keys, allocators and TensorFlow have their pools.
_SETTLED = 0.3
# The number of lives that must reach the step at which they are compared. Workers with shorter lives do not count.
_LEAST = 6


@dataclasses.dataclass(frozen=True)
class Look:
    """A measurement: steps of a worker's life so far, its own bytes, and its tables' bytes."""

    lived: int
    own: int
    tables: int


@dataclasses.dataclass(frozen=True)
class Growth:
    """Early and late bytes, from several measurements each."""

    what: str
    early: float
    late: float

    @property
    def share(self) -> float:
        """The relative growth from early to late: 0.01 is one percent."""
        return self.late / self.early - 1

    def __str__(self) -> str:
        return f"{self.what} {self.early / 2**20:.2f} to {self.late / 2**20:.2f} MiB ({self.share:+.2%})"


def lives(folder: Path, rank: int) -> list[list[Look]]:
    """Returns the measurements of each of a worker's lives that has at least one."""
    found: list[list[Look]] = []
    last = 0
    for line in (folder / f"memory.{rank}").read_text().splitlines():
        look = Look(*map(int, line.split()))
        if not found or look.lived <= last:
            found.append([])
        found[-1].append(look)
        last = look.lived
    return found


def in_one_life(folder: Path, rank: int) -> list[Growth]:
    """Returns the growth within a worker's first life, of its own memory and of its tables: from settled to the end."""
    looks = next(iter(lives(folder, rank)), [])
    settled = looks[int(len(looks) * _SETTLED) :]
    part = len(settled) // 4
    if part < _LEAST:
        return []
    return [
        Growth(f"worker {rank}", _median(settled[:part], "own"), _median(settled[-part:], "own")),
        Growth("its tables", _median(settled[:part], "tables"), _median(settled[-part:], "tables")),
    ]


def over_lives(folder: Path, rank: int) -> list[Growth]:
    """Returns the growth of a worker's own memory from early to late lives, at the same step after each start.

    Compares the largest values of both halves: some lives have a few megabytes less than others, and none has more.
    """
    all_lives = lives(folder, rank)
    reached = sorted((looks[-1].lived for looks in all_lives), reverse=True)
    if len(reached) < _LEAST:
        return []
    # The latest step that enough lives, and at least half of them, have reached.
    at = reached[max(_LEAST, len(reached) // 2) - 1]
    looks = [look for look in itertools.chain(*all_lives) if look.lived == at]
    half = len(looks) // 2
    what = f"worker {rank} {at} steps after its start, in {len(looks)} lives,"
    return [Growth(what, *(max(look.own for look in part) for part in (looks[:half], looks[-half:])))]


def _median(looks: Sequence[Look], what: str) -> float:
    return statistics.median(getattr(look, what) for look in looks)
