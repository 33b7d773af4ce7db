"""The folder through which a function comes to workers, and their results come back (`call`): the names of its files.

Each host has one. Its contents travel with the job.
"""

from collections.abc import Collection
from pathlib import Path

# Where a worker finds it.
VARIABLE = "LOCKSTEP_CALL"
FUNCTION = "function"
KINDS = ("result", "error")
_MOST_DIGITS = 9


def worker_file(folder: Path, kind: str, rank: str) -> Path:
    """The file that a worker leaves."""
    return folder / f"{kind}.{rank}"


def results_of_rank(folder: Path, rank: int) -> list[Path]:
    """The files that a worker has left."""
    return [path for kind in KINDS if (path := worker_file(folder, kind, str(rank))).exists()]


def all_results(folder: Path) -> list[Path]:
    """The files that any worker has left."""
    return sorted(path for kind in KINDS for path in folder.glob(f"{kind}.*") if is_result(path.name))


def is_result(name: str) -> bool:
    """Whether some worker leaves files of this name."""
    kind, _, rank = name.partition(".")
    return kind in KINDS and len(rank) <= _MOST_DIGITS and rank.isascii() and rank.isdigit()


def is_result_of(name: str, ranks: Collection[int]) -> bool:
    """Whether a worker with one of these ranks leaves files of this name."""
    return name in {worker_file(Path(), kind, str(rank)).name for kind in KINDS for rank in ranks}
