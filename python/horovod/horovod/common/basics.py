"""Horovod's basic functions: this process's job, and the parts that the installation was built with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from horovod.common.process_sets import ProcessSet
from lockstep import named
from lockstep._src.compat.horovod import collectives, helpers, job


class HorovodBasics:
    """Horovod's basic functions; `hvd.size` and the like are methods of the one object of the program."""

    # Values of `op`.
    Average = collectives.AVERAGE
    Sum = collectives.SUM
    Adasum = collectives.ADASUM
    Min = collectives.MIN
    Max = collectives.MAX
    Product = collectives.PRODUCT

    def init(self, comm: Iterable[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
        """Joins the job that the launcher started; without a launcher, a job of only this process.

        A process that is in a job already stays there. `process_sets` then get the numbers of the job's sets of the
        same ranks.

        Args:
          comm: ranks of the launcher's job that form the job, 0 the first of them; None for all.
          process_sets: to be made; the same on all ranks. "dynamic" is the same as none, and the variable
            HOROVOD_DYNAMIC_PROCESS_SETS=1.

        Raises:
          ValueError: the environment is incomplete, or another launcher's; `comm` or a process set is not a list
            of ranks, or two sets are alike.
          tf.errors.OpError: the rendezvous failed; names the missing ranks.
        """
        job.init(comm, process_sets)

    def shutdown(self) -> None:
        """Leaves the job, if there is one; the end of the program does the same."""
        named.stop()

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Writes each tensor's history on rank 0, as JSON for chrome://tracing; docs/horovod.md.

        Args:
          file_path: of the file, which is overwritten; an earlier timeline ends. Other ranks write nothing.
          mark_cycles: also marks each time that something was put into the order.

        Raises:
          ValueError: before `init`, or the file cannot be written.
        """
        job.start_timeline(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """Ends the file that `start_timeline` or HOROVOD_TIMELINE began, if any; raises ValueError before `init`."""
        job.stop_timeline()

    def is_initialized(self) -> bool:
        """Returns whether this process has joined its job."""
        return named.is_started()

    def rank(self) -> int:
        """Returns this process's rank, from 0; like the six that follow, raises ValueError before `init`."""
        return job.rank()

    def size(self) -> int:
        """Returns the number of processes."""
        return job.ask(named.size)

    def local_rank(self) -> int:
        """Returns this process's rank among the ranks of its host."""
        return job.ask(named.local_rank)

    def local_size(self) -> int:
        """Returns the number of processes on this host."""
        return job.ask(named.local_size)

    def cross_rank(self) -> int:
        """Returns this host's rank among those that have a process of this local rank."""
        return job.ask(named.cross_rank)

    def cross_size(self) -> int:
        """Returns the number of hosts that have a process of this local rank."""
        return job.ask(named.cross_size)

    def is_homogeneous(self) -> bool:
        """Returns whether all hosts have as many processes."""
        return job.ask(named.is_homogeneous)

    def mpi_threads_supported(self) -> bool:
        """Raises ValueError: there is no MPI."""
        raise ValueError("Horovod MPI is not enabled: this installation has no MPI, and needs none.")

    def mpi_enabled(self) -> bool:
        """Returns False: processes find each other without MPI."""
        return False

    def mpi_built(self) -> bool:
        """Returns False."""
        return False

    def gloo_enabled(self) -> bool:
        """Returns True: processes find each other without MPI. Programs ask about that under Gloo's name."""
        return True

    def gloo_built(self) -> bool:
        """Returns True, as `gloo_enabled`."""
        return True

    def nccl_built(self) -> int:
        """Returns the version of the NCCL that exchanges tensors of this rank's GPU, such as 22809; 0 if none does."""
        return helpers.nccl_version()

    def ddl_built(self) -> bool:
        """Returns False."""
        return False

    def ccl_built(self) -> bool:
        """Returns False."""
        return False

    def cuda_built(self) -> bool:
        """Returns whether tensors on this worker's GPU are exchanged without the CPU's operations."""
        return helpers.exchanges_on_gpus()

    def rocm_built(self) -> bool:
        """Returns False."""
        return False

    # Horovod's own tests ask for it.
    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return job.ask(named.process_sets)
