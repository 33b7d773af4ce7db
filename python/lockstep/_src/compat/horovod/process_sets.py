"""Process sets: some ranks of the job that run collectives together, beside the others."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence

from lockstep._src.collectives import named, named_job
from lockstep._src.compat.horovod import environment


class ProcessSet:
    """Ranks that run collectives together; collectives take it as `process_set`.

    It is in use once `hvd.init` or `hvd.add_process_set` had it.

    Args:
      ranks_or_comm: ranks of the job, in any order.

    Attributes:
      process_set_id: its number, the same on all ranks; None until it is in use.
      ranks: sorted.
      mpi_comm: None: there is no MPI.

    Raises:
      ValueError: that is not a list of ranks.
    """

    __module__ = "horovod.common.process_sets"

    process_set_id: int | None = None
    ranks: list[int]
    mpi_comm = None

    def __init__(self, ranks_or_comm: Iterable[int]):
        if not isinstance(ranks_or_comm, Iterable):
            raise ValueError(f"ProcessSet: got {ranks_or_comm!r}, wanted a list of ranks: this installation has no MPI")
        ranks = list(ranks_or_comm)
        if not all(isinstance(rank, numbers.Integral) for rank in ranks):
            raise ValueError(f"ProcessSet: got {ranks!r}, wanted a list of ranks")
        self.ranks = sorted(map(int, ranks))

    def size(self) -> int | None:
        """Returns how many ranks the set has; None if it is not in use.

        Raises:
          ValueError: no process set has its number.
        """
        return None if self.process_set_id is None else len(named_job.ranks_of(self.process_set_id))

    def rank(self) -> int | None:
        """Returns this process's rank in the set; None if the set is not in use.

        `hvd.allgather` returns rows in this order. `hvd.broadcast` counts its root among all ranks of the job.

        Raises:
          ValueError: this process is not in the set.
        """
        if self.process_set_id is None:
            return None
        own, ranks = named_job.rank(), named_job.ranks_of(self.process_set_id)
        if own not in ranks:
            raise ValueError(f"rank {own} is not part of process set {self.process_set_id}, which has {ranks}")
        return ranks.index(own)

    def included(self) -> bool:
        """Returns whether this process is in the set."""
        return named_job.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = named.ALL


def number_of(process_set: ProcessSet, what: str) -> int:
    """Returns the number of a set that is in use.

    Args:
      process_set: the set.
      what: the name of the operation in messages.

    Raises:
      ValueError: the set is not in use, or no process set.
    """
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
    known = {tuple(ranks): number for number, ranks in named_job.process_sets().items()}
    for one in process_sets:
        found = known.get(tuple(one.ranks))
        if found is None:
            raise ValueError(f"Horovod is initialized already, without the process set {one}; use add_process_set")
        one.process_set_id = found
    global_process_set.ranks = named_job.ranks_of(named.ALL)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a process set while the job runs; all ranks of the job call it with the same ranks.

    Raises:
      ValueError: HOROVOD_DYNAMIC_PROCESS_SETS=1 is not set; there is a set of these ranks; or they are not ranks.
    """
    _check_dynamic("adding")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    process_set.process_set_id = named_job.add_process_set(process_set.ranks)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set; all ranks of the job call it.

    Returns:
      False for a set that is not in use, and for the set of all ranks.

    Raises:
      ValueError: HOROVOD_DYNAMIC_PROCESS_SETS=1 is not set, or the ranks want to remove different ones; the set stays.
    """
    if process_set.process_set_id in (None, named.ALL):
        return False
    _check_dynamic("removing")
    was_there = named_job.remove_process_set(process_set.process_set_id)
    process_set.process_set_id = None
    return was_there


def _check_dynamic(what: str) -> None:
    # Nothing here depends on the variable. A program that works here should work with Horovod as well.
    if not environment.allows_dynamic_process_sets():
        raise ValueError(f"Set {environment.DYNAMIC_PROCESS_SETS}=1 to allow {what} process sets after initialization.")
