"""Keeps what workers write in files, a folder for each rank, beside showing it."""

from collections.abc import Iterable
from pathlib import Path

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console


class OutputCopy:
    """A file with all that a worker wrote to its stdout or stderr, byte for byte.

    Args:
      path: Written anew.
      console: Is told, once, when the file can take no more; the job goes on without it.
      appends: Whether what is there stays, and more follows.
    """

    def __init__(self, path: Path, console: Console, appends: bool = False):
        self._path, self._console = path, console
        # Without a buffer: what a worker wrote before it was killed is there.
        self._file = open(path, "ab" if appends else "wb", buffering=0)  # noqa: SIM115

    def write(self, chunk: bytes) -> None:
        """Adds to it."""
        try:
            while chunk and not self._file.closed:
                chunk = chunk[self._file.write(chunk) :]
        except OSError as error:
            self.close()
            self._console.message(f"{self._path}: {error.strerror}; what is written from here on is not kept")

    def close(self) -> None:
        """Nothing is added any more."""
        self._file.close()


def open_copies(
    folder: str, ranks: Iterable[int], size: int, console: Console, appends: bool = False
) -> dict[int, tuple[OutputCopy, OutputCopy]]:
    """Makes `<folder>/rank.<rank>/stdout` and `stderr` for these workers of a job.

    Ranks are padded with zeros to one width, so that the folders' names sort as their numbers do.

    Args:
      folder: Made where it is missing.
      ranks: Theirs.
      size: How many the job has.
      console: For `OutputCopy`.
      appends: Likewise.

    Returns:
      Rank -> the copies of its stdout and its stderr.

    Raises:
      LaunchError: they cannot be made.
    """
    width = len(str(size - 1))
    return {rank: open_copy(folder, f"rank.{rank:0{width}}", console, appends) for rank in ranks}


def open_copy(folder: str, name: str, console: Console, appends: bool = False) -> tuple[OutputCopy, OutputCopy]:
    """Makes `<folder>/<name>/stdout` and `stderr`, for the two that a worker has.

    Raises:
      LaunchError: they cannot be made.
    """
    of_worker = Path(folder) / name
    try:
        of_worker.mkdir(parents=True, exist_ok=True)
        return tuple(OutputCopy(of_worker / stream, console, appends) for stream in ("stdout", "stderr"))
    except OSError as error:
        raise LaunchError(f"output folder {folder}: {error.strerror} ({error.filename})") from None
