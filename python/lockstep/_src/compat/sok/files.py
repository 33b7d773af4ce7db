"""The files of SparseOperationKit's dumps, in numpy: their names, their header, and how they are read and written.

A dump is a folder. Each table has a file of keys and a file of weights, and one file for each slot of its optimizer.
N is the number of keys, D the dimension of the table:

    <table>-key                  [N]     the keys, each once
    <table>-weight               [N, D]  row i belongs to key i
    <table>-<Optimizer>-<slot>   [N, D]  likewise

`<table>` is the variable's name, with "_" in place of each ASCII punctuation character: "user:0" becomes "user_0".
Every file begins with a header of 296 bytes. The values follow, little-endian and without gaps.

    offset  bytes
    0       256    the dump, as in "dump=18a1f0c3b2d4e5f6/12", blanks, and the table's name in UTF-8
    256     4      the file's type, big-endian: 0 keys, 1 weights, 2 a slot
    260     32     the slot's name, after blanks; only blanks for keys and weights
    292     4      the number of the values' type, big-endian; see `TYPES`

The original leaves the first field blank. Readers therefore ignore the name, and files may be renamed. The dump has a
number, which is later for later dumps, and the number of its files. A filter of its tables follows after another "/":
64 hexadecimal digits, in which each table has set two bits (`filter_of`). Earlier versions wrote less of this. A load
refuses files of two dumps (`check_one_dump`). A file has no checksum and does not say how many values it has; the
checks here find the damage that lengths and keys show.

The files of a dump are written to a folder beside the dump's folder, which then takes its place at once
(engine/whole_files.py). It keeps the files of other tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import hashlib
import os
import re
import shutil
import string
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import IO, Any, Protocol

import numpy as np

from lockstep._src.engine import whole_files

# The types of values; the number of a type in a header is its index.
TYPES = tuple(np.dtype(name) for name in ("<i4", "<i8", "<u4", "<u8", "<f2", "<f4", "<f8"))
HEADER_BYTES = 296
# Files are read and written in parts of about this size, because a table may be larger than a rank's memory.
CHUNK_BYTES = 64 << 20

_DUMP = re.compile(r"dump=([0-9a-f]{16})/(\d+)(?:/([0-9a-f]{64}))?")
_FILTER_BITS = 256
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


@dataclasses.dataclass(frozen=True, order=True)
class Dump:
    """The dump that a file belongs to.

    Attributes:
      number: 16 hexadecimal digits, later for later dumps; "" in files of the original and of earlier versions.
      count: the number of the dump's files.
      tables: the filter of its tables; "" in files of earlier versions.
    """

    number: str = ""
    count: int = 0
    tables: str = ""

    def __str__(self) -> str:
        """Returns the text in messages."""
        return f"dump={self.number}/{self.count}" if self.number else ""

    def encode(self) -> bytes:
        """Returns the bytes in headers."""
        return (f"{self}/{self.tables}" if self.tables else str(self)).encode()

    def may_have(self, table: str) -> bool:
        """Returns False if the dump has not written a table; True if it has, or, rarely, if it has not."""
        return not self.tables or not int(filter_of([table]), 16) & ~int(self.tables, 16)


def filter_of(tables: Iterable[str]) -> str:
    """Returns a filter of the names of tables, in 64 hexadecimal digits: each name sets two of 256 bits."""
    bits = 0
    for table in tables:
        for byte in hashlib.blake2b(table.encode(), digest_size=2).digest():
            bits |= 1 << byte
    return f"{bits:0{_FILTER_BITS // 4}x}"


def new_number() -> str:
    """Returns the number of a dump that begins now."""
    return f"{time.time_ns():016x}"


class Encodes(Protocol):
    """The first bytes of a file."""

    def encode(self) -> bytes:
        """Returns the bytes."""


@dataclasses.dataclass(frozen=True)
class Header:
    """The first 296 bytes of a file.

    Attributes:
      file_type: the content of the file.
      dtype: the type of its values.
      table: the name of the table; empty in files of the original.
      slot: the name of the slot; empty for keys and weights.
      dump: the dump that the file belongs to.
    """

    file_type: FileType
    dtype: np.dtype
    table: str = ""
    slot: str = ""
    dump: Dump = Dump()

    def encode(self) -> bytes:
        """Returns the header's bytes.

        Raises:
          TypeError: the format has no number for this type.
          ValueError: a name is too long.
        """
        name, dump = _padded("table", self.table, _TABLE_BYTES), self.dump.encode()
        parts = (
            dump + name[len(dump) :],  # of a very long name, which readers ignore, the end
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
        table, dump = _text(data[:_TABLE_BYTES]), Dump()
        if match := _DUMP.match(table):
            table, dump = table[match.end() :].strip(), Dump(match[1], int(match[2]), match[3] or "")
        return cls(FileType(file_type), TYPES[number], table, _text(data[slot_at:dtype_at]), dump)


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
      dump: the dump that it belongs to.

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
        self.dump = header.dump

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
      table: the name of the table in its files.
      num_keys: the number N of keys.
      keys: the file of keys.
      weights: the file of weights.
      slots: the files of slots, by the names of the slots.

    Raises:
      FileNotFoundError: a file does not exist.
      DumpFileError: a file is damaged, or does not fit the others or `dimension`.
    """

    def __init__(self, folder: str, table: str, dimension: int, optimizer: str = "", slots: Sequence[str] = ()) -> None:
        self.table = table
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
            if file.dump != self.keys.dump:
                raise _of_two_dumps(file, self.keys)
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


def check_one_dump(folder: str, tables: Iterable[TableFiles]) -> None:
    """Checks that no table is of an earlier dump than one that has written it as well.

    Where a folder cannot be replaced at once, a dump that ended between two of its files leaves some of an earlier one.

    Raises:
      DumpFileError: the folder lacks files of a dump, and has files of an earlier one in their place.
    """
    loaded = list(tables)
    newest = max(one.keys.dump for one in loaded)
    for dump in {one.keys.dump for one in loaded}:
        if not dump.tables and dump != newest:
            continue  # of an earlier version, which does not say its tables
        earlier = [one.keys for one in loaded if one.keys.dump < dump and dump.may_have(one.table)]
        if earlier and not _is_complete(folder, dump):
            raise _of_two_dumps(earlier[0], next(one.keys for one in loaded if one.keys.dump == dump))


def _is_complete(folder: str, dump: Dump) -> bool:
    """Returns whether a folder has all files of a dump."""
    there = 0
    for name in os.listdir(folder):
        with contextlib.suppress(OSError, DumpFileError):
            there += Header.read(os.path.join(folder, name)).dump == dump
    return there >= dump.count


def _of_two_dumps(one: ValuesFile, other: ValuesFile) -> DumpFileError:
    which, whose = (str(file.dump) or "without a number" for file in (one, other))
    return DumpFileError(
        one.path, f"a file of another dump ({which})", f"one of the same dump as {other.path} ({whose})"
    )


class StagedFiles:
    """Files of a folder that get their names together, once they are complete; a context manager.

    They are written to a draft of the folder. `sync` makes their content durable, and `publish` gives the draft the
    folder's name; other files of the folder are kept. A draft that is not published is removed when the context ends;
    the next dump removes the draft of a killed process. A folder that is a mount point, or whose parent is
    read-only, cannot be replaced: its files are then renamed one by one.

    Args:
      folder: the folder.
      draft: the name of the draft, the same on all ranks that write to one folder; see `whole_files.draft_name`.
    """

    def __init__(self, folder: str, draft: str) -> None:
        self._folder = os.path.realpath(folder)
        self._is_whole = whole_files.is_replaceable(self._folder) and os.access(os.path.dirname(self._folder), os.W_OK)
        place = os.path.dirname(self._folder) if self._is_whole else self._folder
        whole_files.remove_abandoned(place)
        self._root = os.path.join(place, draft)
        self._draft = os.path.join(self._root, os.path.basename(self._folder) or "files")
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> StagedFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # the error of the block is the one to see
                file.close()
        self._files.clear()
        shutil.rmtree(self._root, ignore_errors=True)

    def create(self, path: str, header: Encodes) -> None:
        """Begins a file with its header.

        Raises:
          OSError: the file cannot be written.
          TypeError: the format has no number for the type of the values.
          ValueError: a name does not fit the header.
        """
        first = header.encode()
        whole_files.refuse_read_only(path)
        draft = os.path.join(self._draft, os.path.relpath(os.path.realpath(path), self._folder))
        os.makedirs(os.path.dirname(draft), exist_ok=True)
        self._files[path] = open(draft, "wb")  # noqa: SIM115  closed at the end of the context
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

    def publish(self, after_another: bool = False) -> None:
        """Gives all files of the draft their names, also files of other ranks; `sync` must come first on all ranks.

        It does nothing if there is no draft, since another rank has published it.

        Args:
          after_another: whether another rank has called this before. A file server (NFS) may still show its draft.

        Raises:
          OSError: the files cannot be renamed.
        """
        for file in self._files.values():
            file.close()
        if not os.path.isdir(self._draft):
            return
        try:
            self._rename()
        except OSError as error:
            if not after_another or error.errno not in (errno.ENOENT, errno.ESTALE) or not os.path.isdir(self._folder):
                raise
        shutil.rmtree(self._root, ignore_errors=True)

    def _rename(self) -> None:
        if self._is_whole:
            whole_files.publish(self._draft, self._folder)
        else:
            for place, _, names in os.walk(self._draft):
                target = os.path.normpath(os.path.join(self._folder, os.path.relpath(place, self._draft)))
                os.makedirs(target, exist_ok=True)
                for name in names:
                    os.replace(os.path.join(place, name), os.path.join(target, name))
                whole_files.sync(target)


def chunks(count: int, item_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges [start, stop) that divide `count` items into parts of about 64 MiB."""
    step = max(1, CHUNK_BYTES // item_bytes)
    for start in range(0, count, step):
        yield start, min(start + step, count)


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
