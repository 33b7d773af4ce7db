"""The layers in an HDF5 file of Keras 3, read in a process of its own.

Each layer, and the optimizer, is a group with a subgroup `vars`. The subgroup's attribute `name` is the layer's name. A
layer `DynamicEmbedding` stores its table as the two files of a checkpoint.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

from lockstep._src.inspection import isolated
from lockstep._src.inspection.description import InspectError

VARS, OPTIMIZER = "vars", "optimizer"
# The files of a dynamic table: their names in its layer's group, and in a checkpoint.
TABLE_FILES = {"table_index": "table.index", "table_data": "table.data-00000-of-00001"}
_CHUNK_BYTES = 16 << 20
# A file of Keras has far less. Links may make a file of any size look larger.
_MOST_DEPTH, _MOST_OBJECTS = 64, 200_000


def layers(path: str, begin: int, size: int, folder: str) -> dict[str, Any]:
    """Reads the layers of an HDF5 file, or of a part of a file, and copies the files of their dynamic tables.

    Args:
      path: The file.
      begin: Where the part begins.
      size: The bytes of the part.
      folder: The folder for the copies; layer i gets the folder `i` in it.

    Returns:
      "layers": for each its group "at", its "name", and its "weights" by name, each a list of type, shape and bytes.
      "known": whether the groups are Keras' groups.

    Raises:
      InspectError: the file is damaged.
    """
    seconds = 20 + (size >> 27)
    return isolated.call(__name__, [path, begin, size, folder], seconds, path, "h5py cannot read its weights")


class _Part(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: Any, begin: int, size: int) -> None:
        super().__init__()
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._begin + self._at)
        data = self._file.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _answer(request: list[Any]) -> dict[str, Any]:
    import h5py

    path, begin, size, folder = request
    try:
        with open(path, "rb") as whole, h5py.File(_Part(whole, begin, size), "r") as file:
            found = [_layer(at, group, size) for at, group in _groups(file)]
            for number, (_, group) in enumerate(_groups(file)):
                members = dict(_members(group))
                if all(name in members for name in TABLE_FILES):
                    _copy_table(members, os.path.join(folder, str(number)))
            return {"layers": found, "known": bool(found) or VARS in file or "layers" in file}
    except InspectError as error:
        raise InspectError(f"{path} {error}") from None
    except Exception as error:  # h5py has no class for the errors of damaged files
        isolated.check_memory(error)
        raise InspectError(f"{path} is damaged, or is not a file of Keras 3: {error or type(error).__name__}") from None


def _members(group: Any) -> Iterator[tuple[str, Any]]:
    """Yields the members of a group that lie in this file; other links are not Keras'."""
    import h5py

    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            yield name, group[name]


def _groups(file: Any) -> Iterator[tuple[str, Any]]:
    """Yields the groups of weights with the names of the groups above them, the optimizer last."""
    import h5py

    seen: set[Any] = set()

    def below(group: Any, at: str, depth: int) -> Iterator[tuple[str, Any]]:
        for name, part in sorted(_members(group), key=lambda item: item[0] == OPTIMIZER):
            place = h5py.h5o.get_info(part.id).addr
            # A group may have several links, and so be in a circle.
            if place in seen or depth > _MOST_DEPTH or len(seen) > _MOST_OBJECTS:
                raise InspectError("is damaged: its groups do not form a tree, or are too many")
            seen.add(place)
            if not isinstance(part, h5py.Group):
                continue
            if name != VARS:
                yield from below(part, f"{at}/{name}", depth + 1)
            elif len(part):
                yield at.strip("/"), part

    yield from below(file, "", 0)


def _layer(at: str, group: Any, most_bytes: int) -> dict[str, Any]:
    weights: dict[str, tuple[str, list[int], int]] = {}
    for name, values in _members(group):
        shape, size = [int(dimension) for dimension in values.shape], int(values.nbytes)
        if size > most_bytes and values.compression is None:
            raise InspectError(f"is damaged: weight '{name}' of '{at}' has {size} bytes, but the file has {most_bytes}")
        weights[name] = values.dtype.name, shape, size
    name = group.attrs["name"] if "name" in group.attrs else at.rpartition("/")[2]
    return {"at": at, "name": name if isinstance(name, str) else str(name)[:1000], "weights": weights}


def _copy_table(members: dict[str, Any], folder: str) -> None:
    os.mkdir(folder)
    for name, file in TABLE_FILES.items():
        values = members[name]
        if values.ndim != 1 or values.dtype.itemsize != 1 or values.compression or values.external or values.is_virtual:
            raise InspectError(f"is damaged: '{name}' is not a list of bytes")
        with open(os.path.join(folder, file), "wb") as copy:
            for at in range(0, len(values), _CHUNK_BYTES):
                copy.write(values[at : at + _CHUNK_BYTES].tobytes())


if __name__ == "__main__":
    isolated.serve(_answer)
