"""The names of the files in a call folder, which takes a function to workers and their results back (`call`).

Each host has one. The job transfers the contents between hosts.
"""

from collections.abc import Collection
from pathlib import Path

# Tells a worker the folder's path.
VARIABLE = "LOCKSTEP_CALL"
FUNCTION = "function"
KINDS = ("result", "error")
_MOST_DIGITS = 9


def worker_file(folder: Path, kind: str, rank: str) -> Path:
    """Returns the path of the file that a worker leaves."""
    return folder / f"{kind}.{rank}"


def results_of_rank(folder: Path, rank: int) -> list[Path]:
    """Returns the files that the worker with this rank has left."""
    return [path for kind in KINDS if (path := worker_file(folder, kind, str(rank))).exists()]


def all_results(folder: Path) -> list[Path]:
    """Returns the files that workers have left."""
    return sorted(path for kind in KINDS for path in folder.glob(f"{kind}.*") if is_result(path.name))


def is_result(name: str) -> bool:
    """Returns whether this is the name of a file that some worker leaves."""
    kind, _, rank = name.partition(".")
    return kind in KINDS and len(rank) <= _MOST_DIGITS and rank.isascii() and rank.isdigit()


def is_result_of(name: str, ranks: Collection[int]) -> bool:
    """Returns whether this is the name of a file that a worker with one of these ranks leaves."""
    return name in {worker_file(Path(), kind, str(rank)).name for kind in KINDS for rank in ranks}
