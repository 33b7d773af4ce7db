"""A worker of a job, as its launcher sees it."""

import os
import signal
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from lockstep.launch.folder import Copy
from lockstep.launch.guard import kill_group
from lockstep.launch.process import Process

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


class Member:
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
      sinks: What takes its stdout and its stderr.
    """

    sinks: Sequence[Sink] = ()

    def __init__(self, rank: int, pid: int):
        self.rank, self.pid = rank, pid
        self.name = f"rank {rank}"
        self.code: int | None = None
        self.last_lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self.streams: dict[int, Sink] = {}

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
        if self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"failed with exit code {self.code}"

    def poll(self) -> bool:
        """True once, when it has ended; `code` is set then."""
        raise NotImplementedError

    def signal(self, signum: signal.Signals) -> None:
        """Sends a signal to its process group, which may be gone."""
        raise NotImplementedError

    def reap(self) -> None:
        """Nothing is wanted of it any more."""
        raise NotImplementedError


class Worker(Member):
    """A process of this launcher's.

    Args:
      process: It.
      rank: In the job.
      copies: Where its output is kept as well: its stdout and its stderr. Where it goes, `show` is told.
    """

    def __init__(self, process: Process, rank: int, copies: tuple[Copy, Copy] | None):
        super().__init__(rank, process.pid)
        self._process = process
        self._pipes = (process.stdout, process.stderr)
        self._copies = dict(zip((pipe.fileno() for pipe in self._pipes), copies or (), strict=False))

    def show(self, stdout: Sink, stderr: Sink) -> None:
        """Says where its output goes, before any of it is read."""
        self.sinks = (stdout, stderr)
        for pipe, sink in zip(self._pipes, self.sinks, strict=True):
            os.set_blocking(pipe.fileno(), False)
            self.streams[pipe.fileno()] = sink

    def poll(self) -> bool:
        """As of `Member`."""
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

    def signal(self, signum: signal.Signals) -> None:
        """As of `Member`."""
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
