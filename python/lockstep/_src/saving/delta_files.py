"""The files of updatable exports and of deltas, and the names of a delta's tensors (docs/deltas.md).

    <base>/1700000000/                                    an updatable export: a SavedModel
    <base>/1700000000/assets.extra/lockstep_export.json   its record
    <base>/deltas/1700000000-000001/                      the first delta on it
        delta.index, delta.data-00000-of-00001            its tensors, a checkpoint in TensorFlow's format
        delta.json                                        its record
    <base>/deltas/1700000000-000002/                      the second delta, which builds on the first

Both records are JSON with a checksum (sealed.py). A program without Lockstep can read them too:
examples/serving/server.py.

| field | in the record of | holds |
| --- | --- | --- |
| `format` | both | 1 |
| `export` | delta | the name of the export's folder |
| `sequence` | both | 0 for an export; 1 for the first delta on it, and so on |
| `version` | both | the number of the checkpoint whose values a server then has |
| `previous` | delta | the version on which it builds |
| `checkpoint` | both | the prefix of that checkpoint |
| `variables` | both | by name: `shape` and `dtype` |
| `tables` | both | dynamic tables by name: row size `dim`, and `key_dtype` |
| `files` | delta | the other files by name: `bytes`, and `crc32` of the content |
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from typing import Any

import tensorflow as tf

from lockstep._src.saving import sealed

_gfile = tf.io.gfile

FORMAT = 1
EXPORT_RECORD = "assets.extra/lockstep_export.json"
DELTA_RECORD = "delta.json"
# The name of a delta's checkpoint in its folder.
DELTA_PREFIX = "delta"
# The folder of deltas, beside the exports.
FOLDER = "deltas"

_CHUNK_BYTES = 16 << 20


def changed_ids(variable: str) -> str:
    """Returns the name of the tensor with the changed rows' numbers, int64 [C], of a variable with rows."""
    return f"{variable}-changed-ids"


def changed_values(name: str) -> str:
    """Returns the name of the tensor with the changed rows, [C, ...], of a variable or a dynamic table."""
    return f"{name}-changed-values"


def changed_keys(table: str) -> str:
    """Returns the name of the tensor with a dynamic table's changed and new keys, [C]."""
    return f"{table}-changed-keys"


def removed_keys(table: str) -> str:
    """Returns the name of the tensor with the keys that a dynamic table lost, [G]."""
    return f"{table}-removed-keys"


@dataclasses.dataclass(frozen=True)
class Record:
    """An updatable export, or a delta on one.

    Attributes:
      export: the name of the export's folder.
      sequence: 0 for an export, 1 for the first delta on it.
      version: the number of the checkpoint with the same values.
      previous: the version on which a delta builds; 0 for an export.
      checkpoint: the prefix of that checkpoint.
      variables: name -> shape and type.
      tables: the dynamic tables: name -> row size and type of keys.
    """

    export: str
    sequence: int
    version: int
    previous: int
    checkpoint: str
    variables: dict[str, tuple[list[int], tf.DType]]
    tables: dict[str, tuple[int, tf.DType]]

    def content(self) -> dict[str, Any]:
        """Returns the content of the file."""
        return {
            "format": FORMAT,
            "export": self.export,
            "sequence": self.sequence,
            "version": self.version,
            "previous": self.previous,
            "checkpoint": self.checkpoint,
            "variables": {n: {"shape": shape, "dtype": dtype.name} for n, (shape, dtype) in self.variables.items()},
            "tables": {n: {"dim": dim, "key_dtype": keys.name} for n, (dim, keys) in self.tables.items()},
        }


def name_of(export: str, sequence: int) -> str:
    """Returns the name of the folder of a delta; names sort in the order of the deltas."""
    return f"{export}-{sequence:06d}"


def write_export_record(directory: str, record: Record) -> None:
    """Writes the record of an export whose folder does not have its final name yet."""
    path = os.path.join(directory, EXPORT_RECORD)
    _gfile.makedirs(os.path.dirname(path))
    # The folder's name is the export's name, so the record leaves it open.
    with _gfile.GFile(path, "w") as file:
        file.write(sealed.seal({k: v for k, v in record.content().items() if k not in ("export", "previous")}))


def write_delta_record(directory: str, record: Record) -> None:
    """Writes the record of a delta after its tensors."""
    files = {name: _sums(os.path.join(directory, name)) for name in sorted(_gfile.listdir(directory))}
    with _gfile.GFile(os.path.join(directory, DELTA_RECORD), "w") as file:
        file.write(sealed.seal({**record.content(), "files": files}))


def read_record(directory: str) -> Record:
    """Reads the record of an updatable export or of a delta.

    Raises:
      ValueError: the folder is neither, or the record is damaged or of another format.
    """
    for name in (EXPORT_RECORD, DELTA_RECORD):
        path = os.path.join(directory, name)
        if _gfile.exists(path):
            return _record_of(directory, path)
    raise ValueError(
        f"{directory!r} has neither {EXPORT_RECORD} nor {DELTA_RECORD}; wanted the folder of an export with "
        "updatable=True, or of a delta on one"
    )


def _record_of(directory: str, path: str) -> Record:
    with _gfile.GFile(path, "rb") as file:
        content = sealed.unseal(file.read(), path)
    if content.get("format") != FORMAT:
        raise ValueError(f"{path} has format {content.get('format')}, wanted {FORMAT}")
    return Record(
        export=content.get("export", os.path.basename(os.path.normpath(directory))),
        sequence=content["sequence"],
        version=content["version"],
        previous=content.get("previous", 0),
        checkpoint=content["checkpoint"],
        variables={n: (list(v["shape"]), tf.as_dtype(v["dtype"])) for n, v in content["variables"].items()},
        tables={n: (t["dim"], tf.as_dtype(t["key_dtype"])) for n, t in content["tables"].items()},
    )


def _sums(path: str) -> dict[str, int]:
    crc = size = 0
    with _gfile.GFile(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return {"bytes": size, "crc32": crc}
