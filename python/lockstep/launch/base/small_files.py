"""Reads small files that a user names."""

import os
import stat

# Lists of hosts and settings are much smaller.
MOST_BYTES = 1 << 20


def read_small(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """Returns the contents of a file, or of a pipe, that a user names.

    Raises:
      OSError: it cannot be read, is a device, or holds more than `most` bytes.
    """
    with open(path, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(0, "it is a device, wanted a file or a pipe", str(path))
        contents = file.read(most + 1)
    if len(contents) > most:
        raise OSError(0, f"it has more than {most} bytes, the limit for such a file", str(path))
    return contents
