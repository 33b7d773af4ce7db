"""The files of `sok.Saver` of SOK 1.x, in numpy. A table has two, without headers:

    <name>_keys.file      [n]     int64 or uint32, each key once
    <name>_values.file    [n, D]  float32, row i belongs to key i

`<name>` is the table's `m_var_name`. Numbers are little-endian. n is the number of keys and D the dimension of a row.
The lengths of the files say which type keys have. A table without keys has empty files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from lockstep._src.compat.sok import files

_VALUE = np.dtype("<f4")
# The types of keys; their sizes differ.
_KEYS = {dtype.itemsize: dtype for dtype in (np.dtype("<i8"), np.dtype("<u4"))}


def key_path(folder: str, name: str) -> str:
    """Returns the path of a table's keys."""
    return os.path.join(folder, f"{name}_keys.file")


def value_path(folder: str, name: str) -> str:
    """Returns the path of a table's rows."""
    return os.path.join(folder, f"{name}_values.file")


class NoHeader:
    """Stands in for the header of a file of `files.StagedFiles`."""

    def encode(self) -> bytes:
        """Returns no bytes."""
        return b""


class RawFiles:
    """The two files of a table, with lengths that fit each other.

    Args:
      folder: the folder.
      name: the name of the table.
      dim: the dimension D of the table.

    Attributes:
      keys: the path of the keys.
      values: the path of the rows.
      count: the number n of keys.

    Raises:
      FileNotFoundError: a file does not exist.
      files.DumpFileError: the lengths do not fit.
    """

    def __init__(self, folder: str, name: str, dim: int) -> None:
        self.keys, self.values = key_path(folder, name), value_path(folder, name)
        self._dim = dim
        for path in (self.keys, self.values):
            if not os.path.isfile(path):
                raise FileNotFoundError(
                    f"{path} doesn't exist. This is probably because no table of the name '{name}' was stored in this "
                    "folder by dump_to_file; names follow the order in which a program creates its layers"
                )
        key_bytes, value_bytes = os.path.getsize(self.keys), os.path.getsize(self.values)
        row_bytes = dim * _VALUE.itemsize
        if value_bytes % row_bytes:
            raise files.DumpFileError(
                self.values, f"{value_bytes} bytes", f"a multiple of {row_bytes}, rows of dimension {dim}"
            )
        self.count = value_bytes // row_bytes
        size = key_bytes // self.count if self.count and key_bytes % self.count == 0 else 0
        if (self.count and size not in _KEYS) or (not self.count and key_bytes):
            wanted = " or ".join(str(self.count * size) for size in _KEYS) if self.count else "0"
            raise files.DumpFileError(
                self.keys,
                f"{key_bytes} bytes",
                f"{wanted} bytes, {self.count} keys for the rows of dimension {dim}",
            )
        self._type = _KEYS.get(size, np.dtype("<i8"))

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields keys [m] and rows [m, D] in parts.

        Raises:
          files.DumpFileError: a file became shorter.
        """
        for start, stop in files.chunks(self.count, self._type.itemsize + self._dim * _VALUE.itemsize):
            keys = _read(self.keys, self._type, start, stop)
            yield keys, _read(self.values, _VALUE, start * self._dim, stop * self._dim).reshape(-1, self._dim)


def _read(path: str, dtype: np.dtype, start: int, stop: int) -> np.ndarray:
    # This reads instead of mapping the file, because a mapped file that becomes shorter kills the process.
    found = np.fromfile(path, dtype, count=stop - start, offset=start * dtype.itemsize)
    if len(found) < stop - start:
        raise files.DumpFileError(path, f"{start + len(found)} numbers", f"{stop}: it became shorter while it was read")
    return found
