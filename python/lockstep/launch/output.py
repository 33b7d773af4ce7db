r"""The workers' output, line by line, each with the rank that wrote it.

Progress bars rewrite their line with carriage returns. On a terminal, rank 0's bar stays the last line of the screen
and others' lines scroll above it. In a file or pipe, a bar is one line every ten seconds, and its last state. Bars of
other ranks show their last state only.
"""

import os
import time
from collections import deque
from collections.abc import Callable

_ERASE_LINE = b"\r\x1b[K"
# A line that never ends is handed on in pieces of this size.
_MAX_LINE_BYTES = 1 << 16
PROGRESS_INTERVAL_S = 10.0


class Console:
    """The launcher's stdout and stderr. Not thread safe.

    Args:
      stdout: File descriptor.
      stderr: File descriptor.
      clock: Seconds; time.monotonic.
      timestamps: Whether each line begins with the date and the time of day.
    """

    def __init__(
        self,
        stdout: int = 1,
        stderr: int = 2,
        clock: Callable[[], float] = time.monotonic,
        timestamps: bool = False,
    ):
        self._terminal = {fd: os.isatty(fd) for fd in (stdout, stderr)}
        self.stdout, self.stderr, self.timestamps = stdout, stderr, timestamps
        self._clock = clock
        self._bar: tuple[int, bytes] | None = None
        self._bar_written_at = -PROGRESS_INTERVAL_S

    def prefix(self, name: str, fd: int) -> bytes:
        """Begins the lines that a worker of this name writes to what is shown at `fd`."""
        del fd
        return b"[%s] " % name.encode()

    def line(self, fd: int, text: bytes) -> None:
        """Writes a whole line, given without its end."""
        text = self._stamp() + text
        if self._bar is None or not self._terminal[fd]:
            _write(fd, text + b"\n")
            return
        bar_fd, bar = self._bar
        _write(fd, _ERASE_LINE + text + b"\n")
        _write(bar_fd, bar)

    def progress(self, fd: int, text: bytes) -> None:
        """Shows the state of a progress bar, in place of its former state."""
        text = self._stamp() + text
        if self._terminal[fd]:
            self._bar = (fd, text)
            _write(fd, _ERASE_LINE + text)
        elif self._clock() - self._bar_written_at >= PROGRESS_INTERVAL_S:
            self._bar_written_at = self._clock()
            _write(fd, text + b"\n")

    def end_progress(self) -> None:
        """Takes the progress bar off the screen."""
        if self._bar is not None:
            _write(self._bar[0], _ERASE_LINE)
            self._bar = None

    def message(self, text: str) -> None:
        """A line, or lines, of the launcher itself, on stderr."""
        for line in text.splitlines():
            self.line(self.stderr, b"[lockstep] " + line.encode(errors="replace"))

    def _stamp(self) -> bytes:
        return time.strftime("%Y-%m-%d %H:%M:%S ").encode() if self.timestamps else b""


class Stream:
    """What one worker writes to its stdout or stderr, cut into lines.

    Args:
      console: Where lines go.
      fd: To which of its files.
      prefix: Put before every line.
      shows_progress: False to show only the last state of progress bars.
      history: Gets every line as well.
    """

    def __init__(self, console: Console, fd: int, prefix: bytes, shows_progress: bool, history: deque[bytes]):
        self._console, self._fd, self._prefix = console, fd, prefix
        self._shows_progress, self._history = shows_progress, history
        self._rest = b""
        self._has_bar = False

    def rename(self, prefix: bytes, shows_progress: bool) -> None:
        """From here on lines begin with another prefix."""
        self._prefix, self._shows_progress = prefix, shows_progress

    def feed(self, chunk: bytes) -> None:
        """Takes what was read; incomplete lines wait for their end."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._emit(line)
        while len(rest) > _MAX_LINE_BYTES and b"\r" not in rest:
            self._emit(rest[:_MAX_LINE_BYTES])
            rest = rest[_MAX_LINE_BYTES:]
        # Only the newest state of a bar matters; the carriage return before it says that it is one.
        state = _last_state(rest)
        if b"\r" in rest:
            rest = b"\r" + state + (b"\r" if rest.endswith(b"\r") and state else b"")
            if self._shows_progress:
                self._show(state)
        self._rest = rest

    def finish(self) -> None:
        """Hands on what has no end of line."""
        if _last_state(self._rest).strip():
            self._emit(self._rest)
        elif self._has_bar:
            self._end_bar()
        self._rest = b""

    def _show(self, state: bytes) -> None:
        if state.strip():
            self._has_bar = True
            self._console.progress(self._fd, self._prefix + state)
        elif self._has_bar:
            self._end_bar()

    def _end_bar(self) -> None:
        self._has_bar = False
        self._console.end_progress()

    def _emit(self, line: bytes) -> None:
        if self._has_bar:
            self._end_bar()
        line = _last_state(line)
        self._history.append(line)
        self._console.line(self._fd, self._prefix + line)


def _last_state(line: bytes) -> bytes:
    """What a terminal shows of a line with carriage returns: what follows the last one that something follows."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
