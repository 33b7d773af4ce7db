"""Descriptions of Keras 3's files: whole models (`.keras`) and weights (`.weights.h5`). Keras itself is not needed.

A `.keras` file is a zip archive of the model's configuration and its weights, which are an HDF5 file (hdf5_files.py).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from lockstep._src.inspection import checkpoints, hdf5_files
from lockstep._src.inspection.description import Description, InspectError

ZIP, HDF5 = b"PK\3\4", b"\x89HDF\r\n\x1a\n"  # the first bytes of files
_CONFIG, _METADATA, _WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
_EMBEDDING = "embedding"  # the end of an embedding layer's class, such as DistributedEmbedding
_MOST_TEXT_BYTES = 64 << 20
# Keras does not compress weights. An archive that somebody compressed again is unpacked, if it is not too large.
_MOST_UNPACKED_BYTES, _CHUNK_BYTES = 1 << 30, 1 << 20


class _Weight(NamedTuple):
    """A weight as the file describes it."""

    type: str
    shape: list[int]
    bytes: int


class _Layer(NamedTuple):
    """A layer or optimizer with weights.

    Attributes:
      name: Its name.
      kind: Its class; "" if the file does not have it.
      group: The name of its group in the file.
      weights: Its weights by name.
      table: The folder with the copied checkpoint of its dynamic table; "" if it has none.
    """

    name: str
    kind: str
    group: str
    weights: dict[str, _Weight]
    table: str


def describe(path: str) -> Description:
    """Describes a file of Keras 3.

    Args:
      path: The file; its content decides whether it holds a model or weights.

    Raises:
      InspectError: the file is damaged, or is another zip archive or HDF5 file.
    """
    try:
        with open(path, "rb") as file:
            is_archive = file.read(len(ZIP)) == ZIP
        if not is_archive:
            return _describe(path, path, 0, os.path.getsize(path), {}, {})
        with zipfile.ZipFile(path) as archive:
            config, metadata = (_json(archive, name) for name in (_CONFIG, _METADATA))
            with _weights(path, archive) as where:
                return _describe(path, *where, config, metadata)
    except InspectError:
        raise
    except KeyError as error:
        raise InspectError(f"{path} is not a file of Keras 3: {error.args[0]}") from None
    except Exception as error:  # an archive and a configuration can be wrong in many ways
        text = str(error) or type(error).__name__
        raise InspectError(f"{path} is damaged, or is not a file of Keras 3: {text}") from None


def _json(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    with archive.open(name) as member:
        text = member.read(_MOST_TEXT_BYTES + 1)
    if len(text) > _MOST_TEXT_BYTES:
        raise ValueError(f"{name} has more than {_MOST_TEXT_BYTES} bytes")
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"{name} is not a JSON object")
    return content


@contextlib.contextmanager
def _weights(path: str, archive: zipfile.ZipFile) -> Iterator[tuple[str, int, int]]:
    """Yields the file that has the weights, and where they begin in it, and their bytes."""
    member = archive.getinfo(_WEIGHTS)
    if member.compress_type == zipfile.ZIP_STORED:
        with open(path, "rb") as file:
            file.seek(member.header_offset)
            header = file.read(30)
        name_bytes, extra_bytes = struct.unpack("<HH", header[26:])
        yield path, member.header_offset + len(header) + name_bytes + extra_bytes, member.compress_size
        return
    if member.file_size > _MOST_UNPACKED_BYTES:
        raise ValueError(f"{_WEIGHTS} has {member.file_size} bytes, compressed, wanted at most {_MOST_UNPACKED_BYTES}")
    with tempfile.NamedTemporaryFile() as copy:
        with archive.open(member) as file:
            while data := file.read(_CHUNK_BYTES):
                copy.write(data)
        copy.flush()
        yield copy.name, 0, copy.tell()


def _describe(
    path: str, file: str, begin: int, size: int, config: dict[str, Any], metadata: dict[str, Any]
) -> Description:
    """Describes the file `path`, whose weights are `size` bytes of `file`, from `begin` on."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            read = hdf5_files.layers(file, begin, size, folder)
        except InspectError as error:
            raise InspectError(str(error).replace(file, path)) from None
        classes = dict(_classes(config))
        layers = list(_layers(read["layers"], classes, folder))
        if not read["known"]:
            raise KeyError("it has no group of layers")
        tables = {layer.group: _dynamic_table(path, layer) for layer in layers if layer.table}
    name = config.get("config", {}).get("name")
    optimizer = (config.get("compile_config") or {}).get("optimizer")
    parameters = {layer.group: _parameters(layer, tables.get(layer.group)) for layer in layers}
    return {
        "model": path if config else None,
        "weights_file": None if config else path,
        "written_by": f"Keras {metadata['keras_version']}" if "keras_version" in metadata else "Keras 3",
        "saved": metadata.get("date_saved"),
        "class": config.get("class_name", "") + (f" '{name}'" if name else ""),
        "optimizer": optimizer.get("class_name") if isinstance(optimizer, dict) else optimizer,
        "parameters": sum(count for group, count in parameters.items() if group != hdf5_files.OPTIMIZER),
        "bytes": os.path.getsize(path),
        "dynamic tables": list(tables.values()),
        "embedding tables": [table for layer in layers for table in _embedding_tables(layer)],
        "layers": [
            {
                "name": layer.name,
                "class": layer.kind,
                "weights": len(layer.weights),
                "rows": tables[layer.group]["rows"] if layer.group in tables else None,
                "parameters": parameters[layer.group],
                "bytes": sum(weight.bytes for weight in layer.weights.values()),
            }
            for layer in layers
        ],
        "weights": [
            {
                "name": f"{layer.name}/{weight}",
                "type": values.type,
                "shape": "x".join(map(str, values.shape)) or "scalar",
                "bytes": values.bytes,
            }
            for layer in layers
            for weight, values in sorted(layer.weights.items(), key=lambda item: (len(item[0]), item[0]))
            if weight not in hdf5_files.TABLE_FILES
        ],
    }


def _classes(config: Any) -> Iterator[tuple[str, str]]:
    """Yields the names of a configuration's layers with their classes, also of models inside of models."""
    if isinstance(config, list):
        for part in config:
            yield from _classes(part)
    elif isinstance(config, dict):
        inner = config.get("config")
        if isinstance(inner, dict) and isinstance(inner.get("name"), str) and "class_name" in config:
            yield inner["name"], str(config["class_name"])
        for part in config.values():
            yield from _classes(part)


def _layers(read: list[dict[str, Any]], classes: dict[str, str], folder: str) -> Iterator[_Layer]:
    for number, one in enumerate(read):
        kind = classes.get(one["name"], "")
        name = hdf5_files.OPTIMIZER if one["at"] == hdf5_files.OPTIMIZER else one["name"]
        table = os.path.join(folder, str(number))
        weights = {weight: _Weight(*about) for weight, about in one["weights"].items()}
        # Without a configuration, the name is the group's name, which Keras derives from the class: `embedding_1`.
        yield _Layer(name, kind, one["at"], weights, table if os.path.isdir(table) else "")


def _parameters(layer: _Layer, table: dict[str, Any] | None) -> int:
    """Returns the number of a layer's values; each key of a dynamic table has a row of them."""
    values = sum(math.prod(one.shape) for name, one in layer.weights.items() if name not in hdf5_files.TABLE_FILES)
    return values + (table["rows"] * table["width"] if table else 0)


def _dynamic_table(path: str, layer: _Layer) -> dict[str, Any]:
    """Returns the dynamic table of a layer, in the form of `checkpoints.describe`, with the layer's name."""
    try:
        (table,) = checkpoints.describe(os.path.join(layer.table, "table"))["dynamic tables"]
    except (InspectError, ValueError) as error:
        text = str(error).replace(layer.table, "")
        raise InspectError(f"{path}: the table of layer {layer.name!r} is damaged: {text}") from None
    return {**table, "name": layer.name}


def _embedding_tables(layer: _Layer) -> list[dict[str, Any]]:
    """Returns the tables of an embedding layer; the layer's class or its group's name identifies it."""
    kind = layer.kind or layer.group.rpartition("/")[2].rstrip("0123456789").rstrip("_")
    tables = {name: values for name, values in layer.weights.items() if len(values.shape) == 2}
    if not kind.lower().endswith(_EMBEDDING) or layer.name == hdf5_files.OPTIMIZER:
        return []
    return [
        {
            "name": layer.name if len(tables) == 1 else f"{layer.name}/{name}",
            "rows": values.shape[0],
            "width": values.shape[1],
            "type": values.type,
            "bytes": values.bytes,
        }
        for name, values in tables.items()
    ]
