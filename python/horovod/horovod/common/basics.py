"""Which process this is in its job, and what the installation has: Horovod's functions of these names."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common import process_sets as sets
from lockstep import elastic, named
from lockstep.launch.base import elastic_wire

DYNAMIC_PROCESS_SETS = "HOROVOD_DYNAMIC_PROCESS_SETS"
# By one of these `lockstep` knows its job; by the others Horovod and MPI do.
_OWN_LAUNCHER = ("LOCKSTEP_WORLD_SIZE", "LOCKSTEP_RANK", elastic_wire.ADDRESS, "TF_CONFIG")
_OTHER_LAUNCHERS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


def _variable(name: str, kind: type, default: Any) -> Any:
    """A number from the environment, at least 0; ValueError for something else."""
    text = os.environ.get(name, "")
    if not text:
        return default
    wanted = "seconds, 0 or more" if kind is float else "a whole number, 0 or more"
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, wanted {wanted}") from None
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {text!r}, wanted {wanted}")
    return value


def _is_set(name: str) -> bool:
    """Whether a variable of the environment says yes; ValueError for neither yes nor no."""
    text = os.environ.get(name, "").lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise ValueError(f"{name} is {os.environ[name]!r}, wanted 0 or 1")


def _check_launcher() -> None:
    """ValueError where another launcher has started this process as one of several: each would train alone."""
    if any(os.environ.get(name) for name in _OWN_LAUNCHER):
        return
    for name in _OTHER_LAUNCHERS:
        size = os.environ.get(name, "")
        if size not in ("", "1"):
            raise ValueError(
                f"{name} is {size}, but {_OWN_LAUNCHER[0]} is not set: this process was started by another launcher, "
                f"and would train alone; start the job with this installation's horovodrun -np {size}"
            )


def stall_settings() -> dict[str, float]:
    """When tensors that some ranks did not ask for are warned of and given up, from Horovod's variables; seconds."""
    if _is_set("HOROVOD_STALL_CHECK_DISABLE"):
        return {"stall_warning_s": 0, "stall_timeout_s": 0}
    warning = _variable("HOROVOD_STALL_CHECK_TIME_SECONDS", float, 60)
    timeout = _variable("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", float, 0)
    # As in Horovod, where the job isn't ended before there was a warning.
    return {"stall_warning_s": warning, "stall_timeout_s": timeout if timeout > warning else 0}


def fusion_settings() -> dict[str, int]:
    """Up to how many bytes small tensors travel together, from Horovod's variable; nothing where it is not set."""
    threshold = _variable("HOROVOD_FUSION_THRESHOLD", int, None)
    return {} if threshold is None else {"fusion_bytes": threshold}


def _timeline_path() -> str:
    """Where this job's timeline goes; "" where none is wanted, or not yet."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if path.upper() == "DYNAMIC":
        return ""
    worker = elastic.member()
    if path and worker is not None and worker.place.round > 1:
        # A file for each round: rank 0 may be another process.
        root, extension = os.path.splitext(path)
        return f"{root}.{worker.place.round}{extension}"
    return path


class HorovodBasics:
    """Horovod's basic functions; `hvd.size` and the like are methods of the one object of the program."""

    # Values of `op`.
    Average, Sum, Adasum, Min, Max, Product = range(6)

    def init(self, comm: Any = None, process_sets: Sequence[sets.ProcessSet] | str | None = None) -> None:
        """Joins the job that the launcher started; without a launcher, a job of this process alone.

        Where this process is in a job already, nothing but that `process_sets` get the numbers of those of the same
        ranks.

        Args:
          comm: ranks of the launcher's job that form the job, 0 the first of them; None for all.
          process_sets: to be made; the same on all ranks. "dynamic" is the same as none, and the variable
            HOROVOD_DYNAMIC_PROCESS_SETS=1.

        Raises:
          ValueError: the environment is incomplete, or another launcher's; `comm` or a process set is no list of
            ranks, or two sets are alike.
          tf.errors.OpError: the ranks did not meet; says which are missing.
        """
        if isinstance(process_sets, str):
            if process_sets.lower() != "dynamic":
                raise ValueError(f"process_sets: got {process_sets!r}, wanted a list of process sets, or 'dynamic'")
            os.environ[DYNAMIC_PROCESS_SETS] = "1"
            process_sets = None
        if isinstance(process_sets, sets.ProcessSet):
            raise ValueError(f"process_sets: got {process_sets}, wanted a list of process sets, or 'dynamic'")
        wanted = list(process_sets or ())
        if strange := [one for one in wanted if not isinstance(one, sets.ProcessSet)]:
            raise ValueError(f"process_sets: got {strange[0]!r} in it, wanted hvd.ProcessSet(ranks)")
        if comm is not None and not isinstance(comm, Iterable):
            raise ValueError(f"comm: got {comm!r}, wanted a list of ranks: this installation has no MPI")
        ranks = list(comm or ()) or None
        if not (was_started := named.is_started()):
            _check_launcher()
        named.start(ranks, [one.ranks for one in wanted], **stall_settings(), **fusion_settings())
        sets.number(wanted)
        if not was_started and (path := _timeline_path()):
            self.start_timeline(path, _is_set("HOROVOD_TIMELINE_MARK_CYCLES"))

    def shutdown(self) -> None:
        """Leaves the job. Nothing without one; the end of the program does the same."""
        named.stop()

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Has rank 0 write down what becomes of each tensor, as JSON for chrome://tracing; docs/horovod.md.

        Args:
          file_path: of the file, written anew; the one of before ends. Other ranks write nothing.
          mark_cycles: also marks each time that something was put into the order.

        Raises:
          ValueError: before `init`, or the file cannot be written.
        """
        if self.rank() == 0:
            try:
                named.start_timeline(file_path, mark_cycles)
            except tf.errors.InvalidArgumentError as error:
                raise ValueError(error.message) from None

    def stop_timeline(self) -> None:
        """Ends the file that `start_timeline` or HOROVOD_TIMELINE began, if any. ValueError before `init`."""
        if self.rank() == 0:
            named.stop_timeline()

    def is_initialized(self) -> bool:
        """Whether this process has joined its job."""
        return named.is_started()

    def rank(self) -> int:
        """Of this process, from 0. ValueError before `init`, as for the six that follow."""
        return _initialized(named.rank)

    def size(self) -> int:
        """Number of processes."""
        return _initialized(named.size)

    def local_rank(self) -> int:
        """Of this process among those of its host."""
        return _initialized(named.local_rank)

    def local_size(self) -> int:
        """Number of processes on this host."""
        return _initialized(named.local_size)

    def cross_rank(self) -> int:
        """Of this host among those that have a process of this local rank."""
        return _initialized(named.cross_rank)

    def cross_size(self) -> int:
        """Number of hosts that have a process of this local rank."""
        return _initialized(named.cross_size)

    def is_homogeneous(self) -> bool:
        """Whether all hosts have as many processes."""
        return _initialized(named.is_homogeneous)

    def mpi_threads_supported(self) -> bool:
        """Raises ValueError: there is no MPI."""
        raise ValueError("Horovod MPI is not enabled: this installation has no MPI, and needs none.")

    def mpi_enabled(self) -> bool:
        """False: processes find each other without MPI."""
        return False

    def mpi_built(self) -> bool:
        """False."""
        return False

    def gloo_enabled(self) -> bool:
        """True: processes find each other without MPI, which programs ask for under Gloo's name."""
        return True

    def gloo_built(self) -> bool:
        """True, as `gloo_enabled`."""
        return True

    def nccl_built(self) -> int:
        """0: this version exchanges in the memory of hosts."""
        return 0

    def ddl_built(self) -> bool:
        """False."""
        return False

    def ccl_built(self) -> bool:
        """False."""
        return False

    def cuda_built(self) -> bool:
        """False."""
        return False

    def rocm_built(self) -> bool:
        """False."""
        return False

    # Horovod's own tests ask for it.
    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return _initialized(named.process_sets)


def _initialized(ask: Any) -> Any:
    try:
        return ask()
    except named.NotStartedError:
        raise ValueError(_NOT_INITIALIZED) from None
