"""The launcher's view of a worker."""

import os
import signal
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from lockstep.launch.base import saved_files
from lockstep.launch.base.known_lines import StartUpLines
from lockstep.launch.base.notes import ITSELF, PEER, Notes
from lockstep.launch.base.output import Console
from lockstep.launch.local.output_folder import OutputCopy
from lockstep.launch.local.process import Process
from lockstep.launch.local.started import kill_group, kill_started

LAST_LINES = 20
_READ_BYTES = 1 << 16
# The limit of one call of `read`, as much as the system lets a user keep in a pipe: so a worker that writes without end
# leaves time for the others.
_MOST_READ_BYTES = 1 << 20


def end_in_words(code: int) -> str:
    """Describes how a process ended: "failed with exit code 3", or "was killed by SIGKILL" for -9."""
    if code >= 0:
        return f"failed with exit code {code}"
    # Most real-time signals have no names of their own.
    named = -code in set(signal.Signals)
    return f"was killed by {signal.Signals(-code).name if named else f'SIGRTMIN+{-code - signal.SIGRTMIN}'}"


class Sink(Protocol):
    """A receiver of a worker's output."""

    def feed(self, chunk: bytes) -> None:
        """Takes a part of it."""

    def finish(self) -> None:
        """Ends the output."""


class Worker:
    """A worker on this machine or on another.

    Args:
      rank: In the job; None: an elastic job sends the worker its rank later.
      pid: Also the number of its process group.

    Attributes:
      rank: In the job; None before the first round of an elastic job.
      name: For messages.
      pid: As above.
      code: Exit code, negative for the signal that killed it (as in subprocess); None while it runs.
      last_lines: The newest lines of its stdout and stderr.
      streams: File descriptor -> sink, for the pipes that this process reads.
      sinks: The receivers of its stdout, its stderr and its notes.
      start_up: TensorFlow's start-up lines, which are shown only if they may explain its end.
      notes: Its notes on its end and on checkpoints.
      console: Shows its output; None until it is known.
      traceback_is_shown: Whether its own error's traceback is on the console, from this worker or from another one.
    """

    sinks: Sequence[Sink] = ()
    console: Console | None = None

    def __init__(self, rank: int | None, pid: int):
        self.rank, self.pid = rank, pid
        self.name = "a worker without a rank" if rank is None else f"rank {rank}"
        self.code: int | None = None
        self.last_lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self.streams: dict[int, Sink] = {}
        self.start_up = StartUpLines()
        self.notes = Notes(self._show_error)
        self.traceback_is_shown = self._has_shown = False

    @property
    def is_secondary(self) -> bool:
        """Whether it failed because another rank had ended before."""
        return self.notes.because == PEER

    @property
    def known_rank(self) -> int:
        """The `rank` of a worker that has one."""
        assert self.rank is not None, f"{self.name} has no rank yet"
        return self.rank

    @property
    def final_code(self) -> int:
        """The `code` of a worker that has ended."""
        assert self.code is not None, f"{self.name} still runs"
        return self.code

    @property
    def exit_code(self) -> int:
        """The launcher's exit code for it, as a shell's; 1 if we ended it while it was failing by itself."""
        if self.notes.because == ITSELF and (self.code is None or self.code < 0):
            return 1
        return self.final_code if self.final_code >= 0 else 128 - self.final_code

    @property
    def label(self) -> str:
        """Its rank and process number, for messages."""
        return f"{self.name} (pid {self.pid})"

    @property
    def may_need_start_up(self) -> bool:
        """Whether TensorFlow's start-up lines may explain its end: nothing else does, or its error is of the start."""
        return not self.notes.because or self.notes.start_up

    @property
    def urgency(self) -> int:
        """Orders workers that ended at the same time; the lowest counts as the first failure.

        A killed worker comes before those that failed because of it.
        """
        return self.final_code

    def describe_end(self) -> str:
        """Describes how it ended, for messages."""
        return end_in_words(1 if self.exit_code == 1 else self.final_code)

    def keep(self, text: bytes) -> None:
        """Adds to the file with its stderr, if there is one."""

    def may_exist(self, file: str | None) -> bool:
        """Returns whether a file that it has written may exist; None and files of other hosts are not looked for."""
        del file
        return True

    def may_load(self, file: str | None) -> bool:
        """Returns whether a file that may exist is complete, as far as this launcher can see."""
        del file
        return True

    def poll(self) -> bool:
        """Returns True once, when it has ended; `code` is set then."""
        raise NotImplementedError

    def signal(self, signum: signal.Signals) -> None:
        """Sends a signal to its process group, which may be gone."""
        raise NotImplementedError

    def reap(self) -> None:
        """Frees all that belongs to it."""
        raise NotImplementedError

    def catch_up(self) -> None:
        """Takes the output that has arrived before a note."""

    def _show_error(self, notes: Notes) -> None:
        """Shows the error of a note, behind the output before it; all of the traceback goes into the file."""
        if not notes.trace or self._has_shown:
            return
        self._has_shown = True
        self.catch_up()
        self.keep(notes.trace.encode(errors="replace"))
        self.sinks[1].finish()
        self.sinks[1].feed(self._shown_of(notes).rstrip("\n").encode(errors="replace") + b"\n")

    def _shown_of(self, notes: Notes) -> str:
        """Returns the traceback of an error of its own that is not shown yet, and one line of all others."""
        if notes.because != ITSELF:
            return notes.error
        if self.console is None or not self.console.shows(self.rank):
            return notes.trace
        self.traceback_is_shown = True
        first = self.console.tracebacks.setdefault(notes.same, self.name)
        return notes.trace if first == self.name else f"the same error as {first}"


class LocalWorker(Worker):
    """A child process of this launcher.

    Args:
      process: The process.
      rank: As in `Worker`.
      copies: The files that also get its stdout and its stderr. `show` says which sinks get its output.

    Attributes:
      mark: Its value of LOCKSTEP_NOTES, which all processes that it starts inherit.
    """

    def __init__(self, process: Process, rank: int | None, copies: tuple[OutputCopy, OutputCopy] | None):
        super().__init__(rank, process.pid)
        self._process = process
        self.mark = process.mark
        self._pipes = (process.stdout, process.stderr, process.notes)
        self._copies = dict(zip((pipe.fileno() for pipe in self._pipes), copies or (), strict=False))

    def show(self, stdout: Sink, stderr: Sink, noted: Sink) -> None:
        """Sets the receivers of its output and its notes, before any of them is read."""
        self.sinks = (stdout, stderr, noted)
        for pipe, sink in zip(self._pipes, self.sinks, strict=True):
            os.set_blocking(pipe.fileno(), False)
            self.streams[pipe.fileno()] = sink

    def poll(self) -> bool:
        """Implements `Worker.poll`."""
        if self.code is not None:
            return False
        state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is None:
            return False
        self.code = state.si_status if state.si_code == os.CLD_EXITED else -state.si_status
        return True

    def read(self, fd: int) -> bool:
        """Forwards the contents of one of its pipes; returns False at the pipe's end."""
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

    def catch_up(self) -> None:
        """Implements `Worker.catch_up`."""
        for pipe in self._pipes[:2]:
            if not pipe.closed:
                self.read(pipe.fileno())

    def may_exist(self, file: str | None) -> bool:
        """Implements `Worker.may_exist`."""
        return file is None or os.path.exists(file)

    def may_load(self, file: str | None) -> bool:
        """Implements `Worker.may_load`."""
        return file is None or saved_files.is_complete(file)

    def keep(self, text: bytes) -> None:
        """Implements `Worker.keep`."""
        copy = self._copies.get(self._pipes[1].fileno())
        if copy is not None:
            copy.write(text)

    def signal(self, signum: signal.Signals) -> None:
        """Implements `Worker.signal`."""
        kill_group(self.pid, signum)

    def kill_started(self) -> None:
        """Kills all processes that it has started."""
        kill_started({self.pid: self.mark})

    def close(self) -> None:
        """Closes its pipes and files."""
        for file in (*self._pipes, *self._copies.values()):
            file.close()

    def reap(self) -> None:
        """Frees its process number; it must have ended."""
        self.close()
        if self.code is not None:
            self._process.wait()
