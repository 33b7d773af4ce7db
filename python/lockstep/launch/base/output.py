r"""The workers' output: line by line, with the rank of the worker before each line.

Progress bars rewrite their line with carriage returns. On a terminal, the bar of the lowest rank that is shown stays
the last line of the screen, and others' lines scroll above it. In a file or pipe, a bar is one line every ten seconds,
and its last state. Bars of other ranks show their last state only. Keras' bars, which are lines where the output is not
a terminal, are shown in the same way. A file gets text only, and no control characters.
"""

import os
import re
import select
import stat
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from lockstep.launch.base.known_lines import StartUpLines, keras_step

_ERASE_LINE = b"\r\x1b[K"
# A line without end is forwarded in pieces of this size.
_MAX_LINE_BYTES = 1 << 16
PROGRESS_INTERVAL_S = 10.0
# The lines that the user is taken to see: as many as a small terminal has.
_VIEW_LINES = 24
# C0 without tab and carriage return, DEL, and C1 in UTF-8.
_CONTROLS = re.compile(rb"[\x00-\x08\x0a-\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
_CONTROLS_BUT_COLOURS = re.compile(rb"(?!\x1b\[[0-9;]*m)(?:" + _CONTROLS.pattern + rb")")
# Escape sequences of ECMA-48: control sequences (colours, movements), command strings (titles), and two-byte ones.
# A backspace only moves the cursor.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])|\x08+")


class Screen(Protocol):
    """A receiver of lines and of progress bars."""

    def line(self, fd: int, text: bytes) -> None:
        """Takes a whole line, given without its end."""

    def progress(self, fd: int, text: bytes) -> None:
        """Takes the state of a progress bar, which replaces its former state."""

    def end_progress(self) -> None:
        """Ends the progress bar."""


class Console:
    """The launcher's stdout and stderr. Not thread safe.

    Args:
      stdout: File descriptor.
      stderr: File descriptor.
      clock: Seconds; time.monotonic.
      timestamps: Whether each line begins with the date and the time of day.
      ranks: The ranks whose output is shown; None: all. The launcher's own messages are always shown.
      holds_start_up: Whether TensorFlow's start-up lines are hidden (`StartUpLines`).

    Attributes:
      tracebacks: The errors whose tracebacks are shown: `Notes.same` -> the first worker with this error.
    """

    def __init__(
        self,
        stdout: int = 1,
        stderr: int = 2,
        clock: Callable[[], float] = time.monotonic,
        timestamps: bool = False,
        ranks: Collection[int] | None = None,
        holds_start_up: bool = False,
    ):
        self.ranks, self.holds_start_up = ranks, holds_start_up
        self.tracebacks: dict[str, str] = {}
        self._terminal = {fd: os.isatty(fd) for fd in (stdout, stderr)}
        self._is_file = {fd: _is_file(fd) for fd in (stdout, stderr)}
        self.stdout, self.stderr, self.timestamps = stdout, stderr, timestamps
        self._clock = clock
        self._lost: set[int] = set()  # files to which some output could not be written
        self._raises_broken_pipe = True  # whether a reader that has left is an error
        self._bar: tuple[int, bytes] | None = None
        # The last lines on stderr; also those on stdout if both are one terminal or file.
        self._in_view: deque[bytes] = deque(maxlen=_VIEW_LINES)
        self._viewed = {stderr, stdout} if _are_one_file(stdout, stderr) else {stderr}
        self._bar_written_at = -PROGRESS_INTERVAL_S

    def prefix(self, name: str, fd: int) -> bytes:
        """Returns the text before the lines that a worker of this name writes; they are shown at `fd`."""
        del fd
        return b"[%s] " % name.encode()

    def shows(self, rank: int | None) -> bool:
        """Returns whether the output of this rank is shown; None: a worker that has no rank yet."""
        return self.ranks is None or rank in self.ranks

    def shows_progress_of(self, rank: int | None) -> bool:
        """Returns whether the progress bars of this rank are shown while they change."""
        return rank == (0 if self.ranks is None else min(self.ranks, default=None))

    def line(self, fd: int, text: bytes) -> None:
        """Writes a whole line, given without its end."""
        if fd in self._viewed:
            self._in_view.append(text)
        text = self._stamp() + (plain(text) if self._is_file[fd] else text)
        if self._bar is None or not self._terminal[fd]:
            self._write(fd, text + b"\n")
            return
        bar_fd, bar = self._bar
        self._write(fd, _ERASE_LINE + text + b"\n")
        self._write(bar_fd, bar)

    def progress(self, fd: int, text: bytes) -> None:
        """Shows the state of a progress bar, in place of its former state."""
        text = self._stamp() + (plain(text) if self._is_file[fd] else text)
        if self._terminal[fd]:
            self._bar = (fd, text)
            self._write(fd, _ERASE_LINE + text)
        elif self._clock() - self._bar_written_at >= PROGRESS_INTERVAL_S:
            self._bar_written_at = self._clock()
            self._write(fd, text + b"\n")

    def end_progress(self) -> None:
        """Removes the progress bar from the screen."""
        if self._bar is not None:
            self._write(self._bar[0], _ERASE_LINE)
            self._bar = None

    def message(self, text: str) -> None:
        """Writes one or more lines of the launcher itself, on stderr. Parts of them may come from other hosts."""
        for line in text.splitlines():
            self.line(self.stderr, b"[lockstep] " + printable(line.encode(errors="replace")))

    def is_in_view(self, lines: Iterable[bytes]) -> bool:
        """Returns whether the user still sees all these lines, from any worker."""
        in_view = [plain(line) for line in self._in_view]
        return all(any(shown.endswith(plain(line)) for shown in in_view) for line in lines)

    def ignore_broken_pipes(self) -> None:
        """Makes later writes ignore that nobody reads the output."""
        self._raises_broken_pipe = False

    def _write(self, fd: int, data: bytes) -> None:
        """Writes to one of the two files. Output that cannot be written is lost, and the job continues.

        Raises:
          BrokenPipeError: the file's reader has gone, and `ignore_broken_pipes` was not called.
        """
        try:
            _write_all(fd, data)
        except BrokenPipeError:
            if self._raises_broken_pipe:
                raise
        except OSError as error:
            if fd not in self._lost:
                self._lost.add(fd)
                name = {self.stdout: "stdout", self.stderr: "stderr"}.get(fd, str(fd))
                self.message(f"{name}: {error.strerror}; output to it is lost; the job continues")

    def _stamp(self) -> bytes:
        return time.strftime("%Y-%m-%d %H:%M:%S ").encode() if self.timestamps else b""


class Stream:
    """The stdout or stderr of one worker, cut into lines.

    Args:
      console: Shows the lines.
      fd: Selects one of the console's files.
      prefix: The text before every line.
      shows_progress: False to show only the last state of progress bars.
      history: Also gets every line.
      is_remote: Whether another host sends the output. Then control sequences other than colours are made visible, so
        that the terminal does not follow them.
      is_shown: False if only the history gets the lines.
      start_up: Holds back TensorFlow's start-up lines; None: they are shown.
    """

    def __init__(
        self,
        console: Screen,
        fd: int,
        prefix: bytes,
        shows_progress: bool,
        history: deque[bytes],
        is_remote: bool = False,
        is_shown: bool = True,
        start_up: StartUpLines | None = None,
    ):
        self._console, self._fd, self._prefix, self._is_remote = console, fd, prefix, is_remote
        self._is_shown, self._start_up = is_shown, start_up
        self._keras_bar: tuple[int, bytes] | None = None  # step and line of an unfinished bar
        self._shows_progress, self._history = shows_progress, history
        self._rest = b""
        self._has_bar = False

    def rename(self, prefix: bytes, shows_progress: bool, is_shown: bool = True) -> None:
        """Sets the prefix of later lines, and whether they are shown."""
        self._prefix, self._shows_progress, self._is_shown = prefix, shows_progress, is_shown

    def feed(self, chunk: bytes) -> None:
        """Takes a part of the output; an incomplete line is kept until its end comes."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take(line)
        while len(rest) > _MAX_LINE_BYTES and b"\r" not in rest:
            self._emit(rest[:_MAX_LINE_BYTES])
            rest = rest[_MAX_LINE_BYTES:]
        # Only the newest state of a bar matters. The carriage return before it marks it as a bar.
        state = _last_state(rest)
        if b"\r" in rest:
            rest = b"\r" + state + (b"\r" if rest.endswith(b"\r") and state else b"")
            if self._shows_progress and self._is_shown:
                self._show(state)
        self._rest = rest

    def finish(self) -> None:
        """Forwards a last line without an end."""
        self._end_keras_bar()
        if _last_state(self._rest).strip():
            self._emit(self._rest)
        elif self._has_bar:
            self._end_bar()
        self._rest = b""

    def _show(self, state: bytes) -> None:
        if state.strip():
            self._has_bar = True
            self._console.progress(self._fd, self._prefix + self._harmless(state))
        elif self._has_bar:
            self._end_bar()

    def _harmless(self, text: bytes) -> bytes:
        return printable(text, colours=True) if self._is_remote else text

    def _end_bar(self) -> None:
        self._has_bar = False
        self._console.end_progress()

    def _take(self, line: bytes) -> None:
        """Takes a whole line, which may be a state of Keras' bar."""
        if self._start_up is not None and self._start_up.holds(line):
            return
        bar = keras_step(line)
        if bar is None or (self._keras_bar is not None and bar[0] < self._keras_bar[0]):
            self._end_keras_bar()
        if bar is None or bar[1]:
            self._keras_bar = None  # The last state replaces the one before.
            self._emit(line)
        else:
            self._keras_bar = (bar[0], line)
            if self._shows_progress and self._is_shown:
                self._show(line)

    def _end_keras_bar(self) -> None:
        if self._keras_bar is not None:
            line, self._keras_bar = self._keras_bar[1], None
            self._emit(line)

    def _emit(self, line: bytes) -> None:
        if self._has_bar:
            self._end_bar()
        line = self._harmless(_last_state(line))
        self._history.append(line)
        if self._is_shown:
            self._console.line(self._fd, self._prefix + line)


def streams_of(
    rank: int | None,
    console: Console,
    history: deque[bytes],
    is_remote: bool = False,
    start_up: StartUpLines | None = None,
) -> tuple[Stream, Stream]:
    """Returns the stdout and the stderr of the worker with this rank; the other arguments are as for `Stream`.

    With None, the streams have no name until `rename`.
    """
    name = "" if rank is None else str(rank)
    bars, is_shown = console.shows_progress_of(rank), console.shows(rank)
    stdout, stderr = (
        Stream(console, fd, console.prefix(name, fd), bars, history, is_remote, is_shown, held)
        for fd, held in ((console.stdout, None), (console.stderr, start_up if console.holds_start_up else None))
    )
    return stdout, stderr


def _last_state(line: bytes) -> bytes:
    """Returns what a terminal shows of a line with carriage returns: the last part that is not empty."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def printable(text: bytes, colours: bool = False) -> bytes:
    r"""Returns the text with escapes (\x1b) in place of control characters, so that a terminal follows none of them.

    Args:
      text: Should be UTF-8, but may be any bytes. Tabs and carriage returns are kept.
      colours: Whether to keep sequences that set colours.
    """
    return (_CONTROLS_BUT_COLOURS if colours else _CONTROLS).sub(lambda found: b"\\x%02x" % found[0][-1], text)


def plain(text: bytes) -> bytes:
    r"""Returns the text without escape sequences, and with escapes (\x07) in place of control characters."""
    return printable(_ESCAPES.sub(b"", text))


def _is_file(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:  # A program may run with its stdout closed.
        return False


def _are_one_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # one of them is closed
        return False


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # Another process that shares the file has made it non-blocking: wait as a pipe would.
            select.select([], [fd], [])
