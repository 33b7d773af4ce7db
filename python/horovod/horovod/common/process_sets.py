"""Process sets: some ranks of the job that run collectives together, beside the others."""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable, Sequence
from typing import Any

from lockstep import named


class ProcessSet:
    """Ranks that run collectives together, which take it as `process_set`.

    It is in use once `hvd.init` or `hvd.add_process_set` had it.

    Args:
      ranks_or_comm: ranks of the job, in any order.

    Attributes:
      process_set_id: its number, the same on all ranks; None where it is not in use.
      ranks: sorted.
      mpi_comm: None: there is no MPI.

    Raises:
      ValueError: that is no list of ranks.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Iterable[int]):
        if not isinstance(ranks_or_comm, Iterable):
            raise ValueError(f"ProcessSet: got {ranks_or_comm!r}, wanted a list of ranks: this installation has no MPI")
        ranks = list(ranks_or_comm)
        if not all(isinstance(rank, numbers.Integral) for rank in ranks):
            raise ValueError(f"ProcessSet: got {ranks!r}, wanted a list of ranks")
        self.ranks = sorted(map(int, ranks))

    def size(self) -> int | None:
        """Number of its ranks; None where it is not in use. ValueError where its number is no set's."""
        return None if self.process_set_id is None else len(named.ranks_of(self.process_set_id))

    def rank(self) -> int | None:
        """Of this process in the set; None where it is not in use. ValueError for a process that is not in it.

        What `hvd.allgather` gathers is in this order. `hvd.broadcast` counts its root among all ranks of the job.
        """
        if self.process_set_id is None:
            return None
        ranks = named.ranks_of(self.process_set_id)
        if named.rank() not in ranks:
            raise ValueError(f"rank {named.rank()} is not part of process set {self.process_set_id}, which has {ranks}")
        return ranks.index(named.rank())

    def included(self) -> bool | None:
        """Whether this process is in the set; None where its ranks are not known."""
        return None if self.ranks is None else named.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = named.ALL


def number_of(process_set: ProcessSet, what: str) -> int:
    """The number of a set that is in use, for what is called `what` in messages; ValueError where it is none."""
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"{what}: process_set is {process_set!r}, wanted a hvd.ProcessSet")
    if process_set.process_set_id is None:
        raise ValueError(f"{what}: {process_set} is not in use: give it to hvd.init or hvd.add_process_set first")
    return process_set.process_set_id


def number(process_sets: Sequence[ProcessSet]) -> None:
    """Gives sets the numbers under which the job has their ranks, as `hvd.init` does.

    Raises:
      ValueError: the job has no set of such ranks.
    """
    known = {tuple(ranks): number for number, ranks in named.process_sets().items()}
    for one in process_sets:
        found = known.get(tuple(one.ranks))
        if found is None:
            raise ValueError(f"Horovod is initialized already, without the process set {one}; use add_process_set")
        one.process_set_id = found
    global_process_set.ranks = named.ranks_of(named.ALL)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a process set while the job runs; all ranks of the job call it with the same ranks.

    Raises:
      ValueError: HOROVOD_DYNAMIC_PROCESS_SETS=1 is not set; there is a set of these ranks; or they are no ranks.
    """
    _check_dynamic("adding")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    process_set.process_set_id = named.add_process_set(process_set.ranks)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a process set; all ranks of the job call it. False where it is not in use, and for the set of all ranks.

    Raises:
      ValueError: HOROVOD_DYNAMIC_PROCESS_SETS=1 is not set, or the ranks want to remove different ones; the set stays.
    """
    if process_set.process_set_id in (None, named.ALL):
        return False
    _check_dynamic("removing")
    was_there = named.remove_process_set(process_set.process_set_id)
    process_set.process_set_id = None
    return was_there


def _check_dynamic(what: str) -> None:
    # Nothing here depends on it, but what works here should work with Horovod.
    value: Any = os.environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "")
    if value.lower() in ("", "0", "false", "no", "off"):
        raise ValueError(f"Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow {what} process sets after initialization.")
