"""Whether the memory of workers grows, by what they say of it themselves every so many steps (`program.py --weigh`)."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

# A life is settled after this share of it: tables have all their keys, allocators and TensorFlow their pools.
_SETTLED = 0.3
# How many lives have to have come as far as the step that they are compared at; a worker that lived for fewer looks
# than that says nothing.
_LEAST = 6


@dataclasses.dataclass(frozen=True)
class Look:
    """How many steps a worker had lived for, its own bytes, and those of its tables."""

    lived: int
    own: int
    tables: int


@dataclasses.dataclass(frozen=True)
class Growth:
    """Bytes early and late, of several looks each."""

    what: str
    early: float
    late: float

    @property
    def share(self) -> float:
        """By how much the late are more than the early: 0.01 is one percent."""
        return self.late / self.early - 1

    def __str__(self) -> str:
        return f"{self.what} {self.early / 2**20:.2f} to {self.late / 2**20:.2f} MiB ({self.share:+.2%})"


def lives(folder: Path, rank: int) -> list[list[Look]]:
    """Looks of each of a worker's lives that came to its first."""
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
    """Growth within a worker's first life, of its own memory and of its tables: settled, and in the end."""
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
    """Growth of a worker's own memory from its early lives to its late ones, so many steps after the start of each.

    By the most that any of either half had: some lives happen to have some megabytes less than others, none more.
    """
    all_lives = lives(folder, rank)
    reached = sorted((looks[-1].lived for looks in all_lives), reverse=True)
    if len(reached) < _LEAST:
        return []
    # The latest that at least half of them, and enough, have come to.
    at = reached[max(_LEAST, len(reached) // 2) - 1]
    looks = [look for look in itertools.chain(*all_lives) if look.lived == at]
    half = len(looks) // 2
    what = f"worker {rank} {at} steps after its start, in {len(looks)} lives,"
    return [Growth(what, *(max(look.own for look in part) for part in (looks[:half], looks[-half:])))]


def _median(looks: Sequence[Look], what: str) -> float:
    return statistics.median(getattr(look, what) for look in looks)
