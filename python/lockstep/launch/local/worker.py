"""A worker of a job, as its launcher sees it."""

import os
import signal
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from lockstep.launch.base.notes import ITSELF, PEER, Notes
from lockstep.launch.local.guard import kill_group
from lockstep.launch.local.output_folder import OutputCopy
from lockstep.launch.local.process import Process

LAST_LINES = 20
_READ_BYTES = 1 << 16
# Of one call of `read`: as much as the system lets a user keep in a pipe. A worker that writes without end leaves time
# for the others.
_MOST_READ_BYTES = 1 << 20


class Sink(Protocol):
    """Takes what a worker writes."""

    def feed(self, chunk: bytes) -> None:
        """Some of it."""

    def finish(self) -> None:
        """There is no more."""


class Worker:
    """A worker on this machine or on another.

    Args:
      rank: In the job.
      pid: Also the number of its process group.

    Attributes:
      rank: In the job.
      name: For messages.
      pid: As above.
      code: Exit code, negative for the signal that killed it (as in subprocess); None while it runs.
      last_lines: The newest lines of its stdout and stderr.
      streams: By file descriptor, where what it writes is read here.
      sinks: What takes its stdout, its stderr and its notes.
      notes: What it has noted of its end, and of checkpoints.
    """

    sinks: Sequence[Sink] = ()

    def __init__(self, rank: int, pid: int):
        self.rank, self.pid = rank, pid
        self.name = f"rank {rank}"
        self.code: int | None = None
        self.last_lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self.streams: dict[int, Sink] = {}
        self.notes = Notes(self._show_error)
        self._has_shown = False

    @property
    def is_secondary(self) -> bool:
        """Whether it failed because another rank had ended before."""
        return self.notes.because == PEER

    @property
    def exit_code(self) -> int:
        """What a launcher returns for it, as a shell does; 1 where we ended it while it was failing by itself."""
        if self.notes.because == ITSELF and (self.code is None or self.code < 0):
            return 1
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def label(self) -> str:
        """Who it is, in full."""
        return f"{self.name} (pid {self.pid})"

    @property
    def urgency(self) -> int:
        """Of workers that ended at once, the lowest failed first: killed ones, before those that failed of it."""
        return self.code

    def describe_end(self) -> str:
        """How it ended, for messages."""
        if self.exit_code > 128 and self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"failed with exit code {self.exit_code}"

    def keep(self, text: bytes) -> None:
        """Adds to what is kept of its stderr; nothing where nothing is kept."""

    def poll(self) -> bool:
        """True once, when it has ended; `code` is set then."""
        raise NotImplementedError

    def signal(self, signum: signal.Signals) -> None:
        """Sends a signal to its process group, which may be gone."""
        raise NotImplementedError

    def reap(self) -> None:
        """Nothing is wanted of it any more."""
        raise NotImplementedError

    def _show_error(self, notes: Notes) -> None:
        """One line of an error whose traceback the worker has left to us; all of it is kept."""
        if notes.trace and not self._has_shown:
            self._has_shown = True
            self.keep(notes.trace.encode(errors="replace"))
            self.sinks[1].finish()
            self.sinks[1].feed(notes.error.encode(errors="replace") + b"\n")


class LocalWorker(Worker):
    """A process of this launcher's.

    Args:
      process: It.
      rank: In the job.
      copies: Where its output is kept as well: its stdout and its stderr. Where it goes, `show` is told.
    """

    def __init__(self, process: Process, rank: int, copies: tuple[OutputCopy, OutputCopy] | None):
        super().__init__(rank, process.pid)
        self._process = process
        self._pipes = (process.stdout, process.stderr, process.notes)
        self._copies = dict(zip((pipe.fileno() for pipe in self._pipes), copies or (), strict=False))

    def show(self, stdout: Sink, stderr: Sink, noted: Sink) -> None:
        """Says where its output and its notes go, before any of them is read."""
        self.sinks = (stdout, stderr, noted)
        for pipe, sink in zip(self._pipes, self.sinks, strict=True):
            os.set_blocking(pipe.fileno(), False)
            self.streams[pipe.fileno()] = sink

    def poll(self) -> bool:
        """As of `Worker`."""
        if self.code is not None:
            return False
        state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is None:
            return False
        self.code = state.si_status if state.si_code == os.CLD_EXITED else -state.si_status
        return True

    def read(self, fd: int) -> bool:
        """Hands on what is in one of its pipes; False at the pipe's end."""
        sink = self.streams[fd]
        for _ in range(_MOST_READ_BYTES // _READ_BYTES):
            try:
                chunk = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                sink.finish()
                return False
            if fd in self._copies:
                self._copies[fd].write(chunk)
            sink.feed(chunk)
        return True

    def keep(self, text: bytes) -> None:
        """As of `Worker`."""
        copy = self._copies.get(self._pipes[1].fileno())
        if copy is not None:
            copy.write(text)

    def signal(self, signum: signal.Signals) -> None:
        """As of `Worker`."""
        kill_group(self.pid, signum)

    def close(self) -> None:
        """Nothing is read from it any more."""
        for file in (*self._pipes, *self._copies.values()):
            file.close()

    def reap(self) -> None:
        """Frees its number; it must have ended."""
        self.close()
        if self.code is not None:
            self._process.wait()
