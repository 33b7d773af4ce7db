"""Keeps the output of workers in files, in a folder for each rank, in addition to showing it."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console


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
            self.close()
            self._console.message(f"{self._path}: {error.strerror}; what is written from here on is not kept")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


# Rank -> the copies of its stdout and its stderr.
Copies = Mapping[int, tuple[OutputCopy, OutputCopy]]


def open_copies(folder: str, ranks: Iterable[int], size: int, console: Console, appends: bool = False) -> Copies:
    """Makes `<folder>/rank.<rank>/stdout` and `stderr` for these workers of a job.

    Ranks are padded with zeros to one width, so that the folders' names sort as their numbers do.

    Args:
      folder: Created if it is missing.
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


def open_copy(folder: str, name: str, console: Console, appends: bool = False) -> tuple[OutputCopy, OutputCopy]:
    """Makes `<folder>/<name>/stdout` and `stderr` for one worker.

    Raises:
      LaunchError: they cannot be made.
    """
    of_worker = Path(folder) / name
    try:
        of_worker.mkdir(parents=True, exist_ok=True)
        stdout, stderr = (OutputCopy(of_worker / stream, console, appends) for stream in ("stdout", "stderr"))
        return stdout, stderr
    except OSError as error:
        raise LaunchError(f"output folder {folder}: {error.strerror} ({error.filename})") from None
