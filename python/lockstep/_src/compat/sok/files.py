"""The files of SparseOperationKit's dumps, in numpy: their names, their header, and how they are read and written.

A dump is a folder. Each table has a file of keys and a file of weights, and one file for each slot of its optimizer.
N is the number of keys, D the dimension of the table:

    <table>-key                  [N]     the keys, each once
    <table>-weight               [N, D]  row i belongs to key i
    <table>-<Optimizer>-<slot>   [N, D]  likewise

`<table>` is the variable's name, with "_" in place of each ASCII punctuation character: "user:0" becomes "user_0".
Every file begins with a header of 296 bytes. The values follow, little-endian and without gaps.

    offset  bytes
    0       256    the table's name in UTF-8, after blanks
    256     4      the file's type, big-endian: 0 keys, 1 weights, 2 a slot
    260     32     the slot's name, after blanks; blanks alone for keys and weights
    292     4      the number of the values' type, big-endian; see `TYPES`

The original leaves the table's name blank. Readers therefore ignore it, and files may be renamed. A file has no
checksum and does not say how many values it has; the checks here find the damage that lengths and keys show.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import string
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import IO, Any

import numpy as np

# The types of values; the number of a type in a header is its index.
TYPES = tuple(np.dtype(name) for name in ("<i4", "<i8", "<u4", "<u8", "<f2", "<f4", "<f8"))
HEADER_BYTES = 296
# Files are read and written in parts of about this size, because a table may be larger than a rank's memory.
CHUNK_BYTES = 64 << 20

_TABLE_BYTES, _SLOT_BYTES, _NUMBER_BYTES = 256, 32, 4
_UNDERSCORES = str.maketrans(string.punctuation, "_" * len(string.punctuation))


class FileType(enum.IntEnum):
    """The content of a file."""

    KEY = 0
    WEIGHT = 1
    SLOT = 2


class DumpFileError(ValueError):
    """A file of a dump is damaged, or does not fit the variable.

    Attributes:
      path: the file.
      got: a description of what the file has.
      wanted: a description of what it must have.
    """

    def __init__(self, path: str, got: str, wanted: str) -> None:
        super().__init__(f"{path}: got {got}, wanted {wanted}")
        self.path, self.got, self.wanted = path, got, wanted


def table_name(name: str) -> str:
    """Returns the name that the files of a variable begin with."""
    return name.translate(_UNDERSCORES)


def key_path(folder: str, table: str) -> str:
    """Returns the path of a table's keys."""
    return os.path.join(folder, f"{table}-key")


def weight_path(folder: str, table: str) -> str:
    """Returns the path of a table's weights."""
    return os.path.join(folder, f"{table}-weight")


def slot_path(folder: str, table: str, optimizer: str, slot: str) -> str:
    """Returns the path of a slot, such as "user_0-Adam-m"."""
    return os.path.join(folder, f"{table}-{optimizer}-{slot}")


def number_of(dtype: Any) -> int:
    """Returns the number of a type in headers.

    Raises:
      TypeError: the format has no number for this type.
    """
    little = np.dtype(dtype).newbyteorder("<")
    if little not in TYPES:
        raise TypeError(f"SOK's files: got values of type {little.name}, wanted one of {_names_of(TYPES)}")
    return TYPES.index(little)


@dataclasses.dataclass(frozen=True)
class Header:
    """The first 296 bytes of a file.

    Attributes:
      file_type: the content of the file.
      dtype: the type of its values.
      table: the name of the table; empty in files of the original.
      slot: the name of the slot; empty for keys and weights.
    """

    file_type: FileType
    dtype: np.dtype
    table: str = ""
    slot: str = ""

    def encode(self) -> bytes:
        """Returns the header's bytes.

        Raises:
          TypeError: the format has no number for this type.
          ValueError: a name is too long.
        """
        parts = (
            _padded("table", self.table, _TABLE_BYTES),
            int(self.file_type).to_bytes(_NUMBER_BYTES, "big"),
            _padded("slot", self.slot, _SLOT_BYTES),
            number_of(self.dtype).to_bytes(_NUMBER_BYTES, "big"),
        )
        return b"".join(parts)

    @classmethod
    def read(cls, path: str) -> Header:
        """Reads the header of a file.

        Raises:
          FileNotFoundError: the file does not exist.
          DumpFileError: the file is shorter than a header, or a number in it is unknown.
        """
        with open(path, "rb") as file:
            data = file.read(HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            raise DumpFileError(path, f"{len(data)} bytes", f"a header of {HEADER_BYTES} bytes")
        slot_at, dtype_at = _TABLE_BYTES + _NUMBER_BYTES, HEADER_BYTES - _NUMBER_BYTES
        file_type = int.from_bytes(data[_TABLE_BYTES:slot_at], "big")
        number = int.from_bytes(data[dtype_at:], "big")
        if file_type not in set(FileType):
            raise DumpFileError(path, f"file type {file_type}", "0 (keys), 1 (weights) or 2 (a slot)")
        if number >= len(TYPES):
            raise DumpFileError(path, f"values of type number {number}", f"a number below {len(TYPES)}")
        return cls(FileType(file_type), TYPES[number], _text(data[:_TABLE_BYTES]), _text(data[slot_at:dtype_at]))


class ValuesFile:
    """One file of a dump, open for reading in parts.

    Args:
      path: the file.
      file_type: the content that it must have.
      slot: the name of the slot that it must have; a file whose header has a blank name is accepted.

    Attributes:
      path: the file.
      dtype: the type of its values.
      count: the number of its values.

    Raises:
      FileNotFoundError: the file does not exist.
      DumpFileError: the file is damaged, or has other content.
    """

    def __init__(self, path: str, file_type: FileType, slot: str = "") -> None:
        header = Header.read(path)
        if header.file_type != file_type:
            raise DumpFileError(path, _described(header.file_type), _described(file_type))
        if slot and header.slot not in ("", slot):
            raise DumpFileError(path, f"slot {header.slot!r}", f"slot {slot!r}")
        size = os.stat(path).st_size - HEADER_BYTES
        if size % header.dtype.itemsize:
            raise DumpFileError(
                path,
                f"{size} bytes of values",
                f"a multiple of {header.dtype.itemsize}, the size of {header.dtype.name}",
            )
        self.path, self.dtype, self.count = path, header.dtype, size // header.dtype.itemsize

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns the values [start, stop).

        Raises:
          DumpFileError: the file has lost values since it was opened.
        """
        # This reads instead of mapping the file, because a mapped file that becomes shorter kills the process.
        offset = HEADER_BYTES + start * self.dtype.itemsize
        values = np.fromfile(self.path, self.dtype, count=stop - start, offset=offset)
        if values.size < stop - start:
            raise DumpFileError(self.path, f"{start + values.size} values", f"the {self.count} that it had before")
        return values


class TableFiles:
    """The files of one table, with lengths that fit each other.

    Args:
      folder: the folder of the dump.
      table: the name of the table in its files; see `table_name`.
      dimension: the dimension D of the variable.
      optimizer: the name of the optimizer; empty if `slots` is.
      slots: the names of the slots to read.

    Attributes:
      num_keys: the number N of keys.
      keys: the file of keys.
      weights: the file of weights.
      slots: the files of slots, by the names of the slots.

    Raises:
      FileNotFoundError: a file does not exist.
      DumpFileError: a file is damaged, or does not fit the others or `dimension`.
    """

    def __init__(self, folder: str, table: str, dimension: int, optimizer: str = "", slots: Sequence[str] = ()) -> None:
        self.keys = ValuesFile(key_path(folder, table), FileType.KEY)
        if self.keys.dtype.kind not in "iu":
            raise DumpFileError(self.keys.path, f"keys of type {self.keys.dtype.name}", "keys of a type of integers")
        self.weights = ValuesFile(weight_path(folder, table), FileType.WEIGHT)
        self.slots = {
            slot: ValuesFile(slot_path(folder, table, optimizer, slot), FileType.SLOT, slot) for slot in slots
        }
        self.num_keys = self.keys.count
        self._dimension = dimension
        for file in (self.weights, *self.slots.values()):
            self._check_length(file)

    def _check_length(self, file: ValuesFile) -> None:
        if file.count == self.num_keys * self._dimension:
            return
        if self.num_keys == 0 or file.count % self.num_keys:
            raise DumpFileError(file.path, f"{file.count} values", f"a multiple of {self.num_keys}, the number of keys")
        raise DumpFileError(
            file.path, f"rows of dimension {file.count // self.num_keys}", f"dimension {self._dimension}"
        )

    def key_chunks(self) -> Iterator[np.ndarray]:
        """Yields all keys in parts of about 64 MiB."""
        for start, stop in chunks(self.num_keys, self.keys.dtype.itemsize):
            yield self.keys.read(start, stop)

    def row_chunks(self, file: ValuesFile) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields keys [n] and their rows [n, D] of `file`, which is `weights` or a slot, in parts of about 64 MiB."""
        for start, stop in chunks(self.num_keys, file.dtype.itemsize * self._dimension):
            rows = file.read(start * self._dimension, stop * self._dimension)
            yield self.keys.read(start, stop), rows.reshape(stop - start, self._dimension)


class StagedFiles:
    """Files that appear under their names together, once they are complete; a context manager.

    A file is written as `<name>.new`. `sync` makes the content durable, and `publish` renames the files. Files that are
    not published when the context ends are removed. The next dump replaces what a killed process left.
    """

    def __init__(self) -> None:
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> StagedFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        for path, file in self._files.items():
            with contextlib.suppress(OSError):  # the error of the block is the one to see
                file.close()
            with contextlib.suppress(OSError):
                os.remove(_draft(path))
        self._files.clear()

    def create(self, path: str, header: Header) -> None:
        """Begins a file with its header.

        Raises:
          OSError: the file cannot be written.
          TypeError: the format has no number for the type of the values.
          ValueError: a name does not fit the header.
        """
        first = header.encode()
        self._files[path] = open(_draft(path), "wb")  # noqa: SIM115  closed at the end of the context
        self._files[path].write(first)

    def append(self, path: str, values: np.ndarray) -> None:
        """Adds values to a file that `create` began.

        Raises:
          OSError: the file cannot be written.
        """
        flat = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1)
        self._files[path].write(flat.view(np.uint8).data)

    def sync(self) -> None:
        """Waits until the content of all files is durable."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def publish(self) -> None:
        """Gives all files their names; `sync` must come first."""
        folders = {os.path.dirname(path) or os.curdir for path in self._files}
        for path in list(self._files):
            os.replace(_draft(path), path)
            self._files.pop(path).close()
        for folder in folders:
            opened = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def chunks(count: int, item_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges [start, stop) that divide `count` items into parts of about 64 MiB."""
    step = max(1, CHUNK_BYTES // item_bytes)
    for start in range(0, count, step):
        yield start, min(start + step, count)


def _draft(path: str) -> str:
    return f"{path}.new"


def _padded(what: str, name: str, size: int) -> bytes:
    data = name.encode()
    if len(data) > size:
        raise ValueError(f"{what} {name!r}: got a name of {len(data)} bytes, wanted at most {size}")
    return data.rjust(size)


def _text(data: bytes) -> str:
    return data.decode(errors="replace").strip()


def _described(file_type: FileType) -> str:
    return f"a file of {('keys', 'weights', 'a slot')[file_type]} (type {int(file_type)})"


def _names_of(dtypes: Sequence[np.dtype]) -> str:
    return ", ".join(dtype.name for dtype in dtypes)
