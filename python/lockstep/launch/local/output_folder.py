"""Keeps the output of workers in files, in a folder for each rank, in addition to showing it."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console, Stream, plain


class OutputCopy:
    """A file with all that a worker wrote to its stdout or stderr, byte for byte.

    Args:
      path: The file, which is overwritten.
      console: Shows one message when the file can take no more; the job continues without it.
      appends: Whether to append to the file instead.
    """

    def __init__(self, path: Path, console: Console, appends: bool = False):
        self._path, self._console = path, console
        # Without a buffer, so that the file has all that a worker wrote before it was killed.
        self._file = open(path, "ab" if appends else "wb", buffering=0)  # noqa: SIM115

    def write(self, chunk: bytes) -> None:
        """Appends to the file."""
        try:
            while chunk and not self._file.closed:
                chunk = chunk[self._file.write(chunk) :]
        except OSError as error:
            self._file.close()
            self._console.message(f"{self._path}: {error.strerror}; later output is not kept")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class LogFile(OutputCopy):
    """A file with the lines that a worker wrote to its stdout or stderr: no control characters, no states of a bar.

    It buffers the last line until its end comes, or until `close`. It takes the arguments of `OutputCopy`.
    """

    def __init__(self, path: Path, console: Console, appends: bool = False):
        super().__init__(path, console, appends)
        self._lines = Stream(self, 0, b"", False, deque(maxlen=0))

    def write(self, chunk: bytes) -> None:
        """Appends the lines of these bytes to the file."""
        self._lines.feed(chunk)

    def line(self, fd: int, text: bytes) -> None:
        """Implements `Screen.line`."""
        del fd
        super().write(plain(text) + b"\n")

    def progress(self, fd: int, text: bytes) -> None:
        """Implements `Screen.progress`: the last state of a bar comes as a line."""

    def end_progress(self) -> None:
        """Implements `Screen.end_progress`."""

    def close(self) -> None:
        """Appends a last line without an end, and closes the file."""
        self._lines.finish()
        super().close()


@dataclass(frozen=True)
class OutputFolder:
    """A folder that also gets the output of workers.

    Attributes:
      path: Created if it is missing.
      holds_lines: Whether its files get lines without control characters (`LogFile`), or all bytes (`OutputCopy`).
    """

    path: str
    holds_lines: bool = False


# Rank -> the copies of its stdout and its stderr.
Copies = Mapping[int, tuple[OutputCopy, OutputCopy]]


def open_copies(
    folder: str | OutputFolder, ranks: Iterable[int], size: int, console: Console, appends: bool = False
) -> Copies:
    """Makes `<folder>/rank.<rank>/stdout` and `stderr` for these workers of a job.

    Ranks are padded with zeros to one width, so that the folders' names sort as their numbers do.

    Args:
      folder: Created if it is missing; a path gets all bytes.
      ranks: The workers' ranks.
      size: Number of workers of the job.
      console: As in `OutputCopy`.
      appends: As in `OutputCopy`.

    Returns:
      Rank -> the copies of its stdout and its stderr.

    Raises:
      LaunchError: they cannot be made.
    """
    width = len(str(size - 1))
    return {rank: open_copy(folder, f"rank.{rank:0{width}}", console, appends) for rank in ranks}


def open_copy(
    folder: str | OutputFolder, name: str, console: Console, appends: bool = False
) -> tuple[OutputCopy, OutputCopy]:
    """Makes `<folder>/<name>/stdout` and `stderr` for one worker.

    Raises:
      LaunchError: they cannot be made.
    """
    if isinstance(folder, str):
        folder = OutputFolder(folder)
    of_worker = Path(folder.path) / name
    kind = LogFile if folder.holds_lines else OutputCopy
    try:
        of_worker.mkdir(parents=True, exist_ok=True)
        stdout, stderr = (kind(of_worker / stream, console, appends) for stream in ("stdout", "stderr"))
        return stdout, stderr
    except OSError as error:
        raise LaunchError(f"output folder {folder.path}: {error.strerror} ({error.filename})") from None
