"""The job of this process: how it joins, its rank there, and the job's timeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import tensorflow as tf

from lockstep._src.collectives import named, named_job
from lockstep._src.compat.horovod import environment
from lockstep._src.compat.horovod import process_sets as sets

_Answer = TypeVar("_Answer")
_NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


def init(comm: Iterable[int] | None, process_sets: Sequence[sets.ProcessSet] | str | None) -> None:
    """Joins the job; see `horovod.common.basics.HorovodBasics.init`."""
    wanted = _wanted_sets(process_sets)
    if comm is not None and not isinstance(comm, Iterable):
        raise ValueError(f"comm: got {comm!r}, wanted a list of ranks: this installation has no MPI")
    ranks = list(comm or ()) or None
    if not (was_started := named_job.is_started()):
        environment.check_launcher()
    settings: named.LaneSettings = {**environment.stall_settings(), **environment.fusion_settings()}
    named_job.start(ranks, [one.ranks for one in wanted], **settings)
    sets.number(wanted)
    if not was_started and (path := environment.timeline_path()):
        start_timeline(path, environment.is_set("HOROVOD_TIMELINE_MARK_CYCLES"))


def _wanted_sets(process_sets: Sequence[sets.ProcessSet] | str | None) -> list[sets.ProcessSet]:
    """Returns the process sets to create; sets the variable that allows more of them for "dynamic"."""
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f"process_sets: got {process_sets!r}, wanted a list of process sets, or 'dynamic'")
        os.environ[environment.DYNAMIC_PROCESS_SETS] = "1"
        process_sets = None
    if isinstance(process_sets, sets.ProcessSet):
        raise ValueError(f"process_sets: got {process_sets}, wanted a list of process sets, or 'dynamic'")
    wanted = list(process_sets or ())
    if strange := [one for one in wanted if not isinstance(one, sets.ProcessSet)]:
        raise ValueError(f"process_sets: got {strange[0]!r} in it, wanted hvd.ProcessSet(ranks)")
    return wanted


def rank() -> int:
    """Returns this process's rank; raises ValueError before `init`."""
    return ask(named_job.rank)


def start_timeline(file_path: str, mark_cycles: bool) -> None:
    """Starts the timeline's file on rank 0; raises ValueError before `init`, and if the file cannot be written."""
    if rank() == 0:
        try:
            named.start_timeline(file_path, mark_cycles)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(error.message) from None


def stop_timeline() -> None:
    """Ends the timeline's file on rank 0, if there is one; raises ValueError before `init`."""
    if rank() == 0:
        named.stop_timeline()


def ask(question: Callable[[], _Answer]) -> _Answer:
    """Returns a function's answer about the job; raises ValueError in Horovod's words before `init`."""
    try:
        return question()
    except named_job.NotStartedError:
        raise ValueError(_NOT_INITIALIZED) from None
