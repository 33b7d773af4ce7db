"""The folder through which a function comes to workers, and their results come back (`call`): the names of its files.

Each host has one. Its contents travel with the job.
"""

from collections.abc import Collection
from pathlib import Path

# Where a worker finds it.
VARIABLE = "LOCKSTEP_CALL"
FUNCTION = "function"
KINDS = ("result", "error")


def of_rank(folder: Path, kind: str, rank: str) -> Path:
    """The file that a worker leaves."""
    return folder / f"{kind}.{rank}"


def results_of(folder: Path, rank: int) -> list[Path]:
    """The files that a worker has left."""
    return [path for kind in KINDS if (path := of_rank(folder, kind, str(rank))).exists()]


def may_be_left(name: str, ranks: Collection[int]) -> bool:
    """Whether a worker with one of these ranks leaves files of this name."""
    return name in {of_rank(Path(), kind, str(rank)).name for kind in KINDS for rank in ranks}
