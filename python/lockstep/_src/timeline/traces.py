"""Reads the trace files of ranks."""

from __future__ import annotations

import dataclasses
import os
import stat
from typing import Any

from lockstep._src.timeline import events as checked

FORMAT = 1
# Ranks end their files at 128 MiB; a longer one is none of theirs.
_MOST_BYTES = 256 << 20


class TimelineError(Exception):
    """A trace is missing, damaged, or of another program; the text says which and why."""


@dataclasses.dataclass
class Trace:
    """The trace of one rank.

    Attributes:
      path: The file.
      rank: The rank.
      size: The number of ranks of the job.
      job: The same on all ranks of a job.
      host: The name of its host.
      boot: Identifies the boot of its host; traces with the same one have the same clock.
      unix_s: The time when the file was begun.
      events: The events, without the first and the last one of the file; times are microseconds.
      ended: Whether the file has its end; without one, the process was killed or still runs.
      dropped: The number of events that the rank did not record.
      full: Whether the file reached its limit.
    """

    path: str
    rank: int
    size: int
    job: str
    host: str
    boot: str
    unix_s: int
    events: list[dict[str, Any]]
    ended: bool
    dropped: int
    full: bool

    def spans(self, category: str) -> list[dict[str, Any]]:
        """Returns the events of a category, in the order of the file."""
        return [event for event in self.events if event.get("cat") == category]


def read(path: str) -> Trace:
    """Reads the trace of a rank. The end may be missing, as after the death of the rank.

    Raises:
      TimelineError: the file cannot be read, is not a trace of a rank, or is damaged.
    """
    lines = _lines(path)
    head = checked.parse(lines[1]) if len(lines) > 1 and lines[0] == "[" else None
    if head is None or head.get("name") != "lockstep":
        raise TimelineError(f"{path}: is not a trace of a rank: its first event is not named 'lockstep'")
    about = head["args"]
    if about.get("format") != FORMAT:
        raise TimelineError(f"{path}: has format {about.get('format')}, wanted {FORMAT}: written by another version")
    if wrong := checked.wrong_in_head(about):
        raise TimelineError(f"{path}: line 2 is damaged: {wrong}")
    events: list[dict[str, Any]] = []
    end: dict[str, Any] | None = None
    for number, line in enumerate(lines[2:], 3):
        if end is not None or line == "]":
            break
        event = checked.parse(line)
        if event is None:
            if number == len(lines):
                break  # the process was killed while it wrote
            raise TimelineError(f"{path}: line {number} is damaged: {line[:60]!r}")
        if event.get("name") == "lockstep_end":
            end = event["args"]
            wrong = checked.wrong_in_end(end)
        else:
            events.append(event)
            wrong = checked.wrong_in(event)
        if wrong:
            raise TimelineError(f"{path}: line {number} is damaged: {wrong}")
    return Trace(
        path,
        about["rank"],
        about["size"],
        about["job"],
        about["host"],
        about["boot"],
        about["unix_s"],
        events,
        ended=end is not None,
        dropped=0 if end is None else end["dropped"],
        full=False if end is None else end["full"],
    )


def _lines(path: str) -> list[str]:
    """Returns the lines of a file that is short enough to be the trace of a rank."""
    try:
        # A pipe of this name would make the reader wait for a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise TimelineError(f"{path}: is not a regular file")
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise TimelineError(f"{path}: {error.strerror or error}") from None
    if len(data) > _MOST_BYTES:
        raise TimelineError(f"{path}: has {state.st_size} bytes, wanted at most {_MOST_BYTES}: not a trace of a rank")
    return data.decode("utf-8", "replace").removesuffix("\n").split("\n")


def read_folder(folder: str, job: str | None = None) -> tuple[list[Trace], list[Trace]]:
    """Reads the traces of a job, by rank, and the traces of other jobs in the folder.

    Args:
      folder: The folder.
      job: The job; None: the one that began last.

    Raises:
      TimelineError: the folder has no trace, none of that job, or a file that `read` refuses.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise TimelineError(f"{folder}: {error.strerror or error}; wanted a folder of traces") from None
    found = [read(os.path.join(folder, name)) for name in names if name.startswith("rank-") and name.endswith(".json")]
    if not found:
        raise TimelineError(f"{folder}: has no file rank-*.json; ranks write them with LOCKSTEP_TIMELINE={folder}")
    jobs = {trace.job for trace in found}
    if job is None:
        job = max(found, key=lambda trace: trace.unix_s).job
    elif job not in jobs:
        raise TimelineError(f"{folder}: has no job {job}; it has {', '.join(sorted(jobs))}")
    mine = sorted((trace for trace in found if trace.job == job), key=lambda trace: trace.rank)
    return mine, [trace for trace in found if trace.job != job]
