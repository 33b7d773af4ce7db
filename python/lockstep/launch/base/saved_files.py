"""Whether a saved file is complete, so that a message may recommend it.

A file that was cut off, or that a full disk has left in the middle, has none of these:

| file | complete if |
| --- | --- |
| `.keras` | a zip file with a directory, whose entries lie inside the file, and with weights |
| `.h5`, `.hdf5` | an HDF5 file that is as long as its own header says |
| `.json` | it begins with a whole value of JSON; one of more than 64 MiB is not read |
| `<prefix>.index` | TensorFlow's table of a checkpoint with its footer, beside all data files of one number |
| a folder | it has files, and all of these kinds in it are complete, or a copy `.bkp` beside them is |

The content is not read. Files of other kinds count as complete.
"""

import glob
import json
import os
import re
import struct
import zipfile
from collections.abc import Callable

_HDF5 = b"\x89HDF\r\n\x1a\n"
# The end of each table file of TensorFlow, as of LevelDB.
_TABLE_END = struct.pack("<Q", 0xDB4775248B80FB57)
_DATA = re.compile(r"\.data-(\d{5})-of-(\d{5})")
_MOST_JSON_BYTES = 64 << 20


def is_complete(path: str) -> bool:
    """Returns whether a file or a folder is complete; False if it does not exist or cannot be read."""
    try:
        if os.path.isdir(path):
            names = [name for name in os.listdir(path) if not name.startswith(".")]
            return bool(names) and all(_is_complete_in(os.path.join(path, name)) for name in names)
        return _is_complete_file(path, path)
    except (OSError, ValueError, LookupError, struct.error, RecursionError, zipfile.BadZipFile, NotImplementedError):
        return False


def _is_complete_in(path: str) -> bool:
    """Does the same for an entry of a folder. Keras reads the copy of a file that it cannot read."""
    if os.path.isdir(path) or path.endswith(".bkp"):
        return True
    return is_complete(path) or is_complete(f"{path}.bkp")


def _is_complete_file(path: str, name: str) -> bool:
    if not os.path.isfile(path):  # a pipe would let the launcher wait
        return os.path.exists(path)
    name = name.removesuffix(".bkp")
    for ends, check in _CHECKS:
        if name.endswith(ends):
            return check(path)
    return os.path.exists(path)


def _is_whole_zip(path: str) -> bool:
    size = os.path.getsize(path)
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    has_weights = any(entry.filename.startswith("model.weights.") for entry in entries)
    return has_weights and all(entry.header_offset + entry.compress_size <= size for entry in entries)


def _is_whole_hdf5(path: str) -> bool:
    """Compares the length of a file with the end in its superblock (HDF5 File Format Specification, II.A)."""
    with open(path, "rb") as file:
        head = file.read(128)
    if not head.startswith(_HDF5):
        return False
    version = head[8]
    # Where the size of addresses is, and how many bytes come before the addresses: base, one more, end.
    size_at, addresses_at = (13, {0: 24, 1: 28}[version]) if version < 2 else (9, 12)
    size = head[size_at]
    end = int.from_bytes(head[addresses_at + 2 * size : addresses_at + 3 * size], "little")
    return 0 < end <= os.path.getsize(path)


def _is_json(path: str) -> bool:
    if os.path.getsize(path) <= _MOST_JSON_BYTES:
        with open(path, encoding="utf-8") as file:
            json.JSONDecoder().raw_decode(file.read().lstrip())
    return True


def _is_whole_checkpoint(path: str) -> bool:
    with open(path, "rb") as file:
        file.seek(-len(_TABLE_END), os.SEEK_END)
        if file.read() != _TABLE_END:
            return False
    prefix = path.removesuffix(".index")
    found: dict[int, set[int]] = {}
    for name in glob.glob(f"{glob.escape(prefix)}.data-*"):
        match = _DATA.fullmatch(name[len(prefix) :])
        if match is not None:
            found.setdefault(int(match[2]), set()).add(int(match[1]))
    return any(len(parts) == count for count, parts in found.items())


_CHECKS: tuple[tuple[tuple[str, ...], Callable[[str], bool]], ...] = (
    ((".keras",), _is_whole_zip),
    ((".h5", ".hdf5"), _is_whole_hdf5),
    ((".json",), _is_json),
    ((".index",), _is_whole_checkpoint),
)
