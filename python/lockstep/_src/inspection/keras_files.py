"""Descriptions of Keras 3's files: whole models (`.keras`) and weights (`.weights.h5`). Keras itself is not needed.

A `.keras` file is a zip archive of the model's configuration and its weights. The weights are an HDF5 file: each layer,
and the optimizer, is a group with a subgroup `vars`. The subgroup's attribute `name` is the layer's name. A layer
`DynamicEmbedding` stores its table as the two files of a checkpoint.
"""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import h5py

from lockstep._src.inspection import checkpoints
from lockstep._src.inspection.description import Description, InspectError

ZIP, HDF5 = b"PK\3\4", b"\x89HDF\r\n\x1a\n"  # the first bytes of files
_CONFIG, _METADATA, _WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
_VARS = "vars"
_OPTIMIZER = "optimizer"
# The files of a dynamic table in its layer's group, and those of a checkpoint.
_TABLE_FILES = {"table_index": "table.index", "table_data": "table.data-00000-of-00001"}
_EMBEDDING = "embedding"  # the end of an embedding layer's class, such as DistributedEmbedding


class _Layer(NamedTuple):
    """A layer or optimizer with weights: its name, its class ("": unknown), and its group of weights."""

    name: str
    kind: str
    weights: h5py.Group


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
        if is_archive:
            with zipfile.ZipFile(path) as archive:
                return _describe_model(path, archive)
        with h5py.File(path, "r") as weights:
            return _describe(path, weights, {}, {})
    except KeyError as error:
        raise InspectError(f"{path} is no file of Keras 3: {error.args[0]}") from None
    except (zipfile.BadZipFile, OSError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, InspectError):
            raise
        raise InspectError(f"{path} is damaged, or is no file of Keras 3: {error}") from None


def _describe_model(path: str, archive: zipfile.ZipFile) -> Description:
    config, metadata = (json.loads(archive.read(name)) for name in (_CONFIG, _METADATA))
    with archive.open(_WEIGHTS) as weights, h5py.File(io.BytesIO(weights.read()), "r") as file:
        return _describe(path, file, config, metadata)


def _describe(path: str, file: h5py.File, config: dict[str, Any], metadata: dict[str, Any]) -> Description:
    classes = dict(_classes(config))
    layers = list(_layers(file, classes))
    if not layers and _VARS not in file and "layers" not in file:
        raise KeyError("it has no group of layers")
    name = config.get("config", {}).get("name")
    optimizer = (config.get("compile_config") or {}).get("optimizer")
    return {
        "model": path if config else None,
        "weights_file": None if config else path,
        "written_by": f"Keras {metadata['keras_version']}" if "keras_version" in metadata else "Keras 3",
        "saved": metadata.get("date_saved"),
        "class": config.get("class_name", "") + (f" '{name}'" if name else ""),
        "optimizer": optimizer.get("class_name") if isinstance(optimizer, dict) else optimizer,
        "parameters": sum(_parameters(layer) for layer in layers if layer.name != _OPTIMIZER),
        "bytes": os.path.getsize(path),
        "dynamic tables": [table for layer in layers for table in _dynamic_tables(path, layer)],
        "embedding tables": [table for layer in layers for table in _embedding_tables(layer)],
        "layers": [
            {
                "name": layer.name,
                "class": layer.kind,
                "weights": len(layer.weights),
                "parameters": None if _has_table(layer) else _parameters(layer),
                "bytes": sum(weight.nbytes for weight in layer.weights.values()),
            }
            for layer in layers
        ],
        "weights": [
            {
                "name": f"{layer.name}/{weight}",
                "type": values.dtype.name,
                "shape": "x".join(map(str, values.shape)) or "scalar",
                "bytes": values.nbytes,
            }
            for layer in layers
            for weight, values in sorted(layer.weights.items(), key=lambda item: (len(item[0]), item[0]))
            if weight not in _TABLE_FILES
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


def _layers(group: h5py.Group, classes: dict[str, str]) -> Iterator[_Layer]:
    """Yields the layers below a group that have weights, in the order of the file; the optimizer comes last."""
    for key, part in sorted(group.items(), key=lambda item: item[0] == _OPTIMIZER):
        if not isinstance(part, h5py.Group):
            continue
        if key != _VARS:
            yield from _layers(part, classes)
        elif len(part):
            at = group.name.strip("/")
            name = str(part.attrs.get("name", at.rpartition("/")[2]))
            # Without a configuration, Keras' name of the group is that of the class: `embedding_1`.
            yield _Layer(_OPTIMIZER if at == _OPTIMIZER else name, classes.get(name, ""), part)


def _parameters(layer: _Layer) -> int:
    return sum(math.prod(values.shape) for name, values in layer.weights.items() if name not in _TABLE_FILES)


def _has_table(layer: _Layer) -> bool:
    return all(name in layer.weights for name in _TABLE_FILES)


def _dynamic_tables(path: str, layer: _Layer) -> list[dict[str, Any]]:
    """Returns the dynamic table of a layer, in the form of `checkpoints.describe`, with the layer's name."""
    if not _has_table(layer):
        return []
    with tempfile.TemporaryDirectory() as folder:
        for name, file in _TABLE_FILES.items():
            with open(os.path.join(folder, file), "wb") as copy:
                copy.write(layer.weights[name][()].tobytes())
        try:
            found = checkpoints.describe(os.path.join(folder, "table"))["dynamic tables"]
        except InspectError as error:
            raise InspectError(f"{path}: the table of layer {layer.name!r} is damaged: {error}") from None
    return [{**table, "name": layer.name} for table in found]


def _embedding_tables(layer: _Layer) -> list[dict[str, Any]]:
    """Returns the tables of an embedding layer; the layer's class or its group's name tells that it is one."""
    kind = layer.kind or layer.weights.parent.name.rpartition("/")[2].rstrip("0123456789").rstrip("_")
    tables = {name: values for name, values in layer.weights.items() if values.ndim == 2}
    if not kind.lower().endswith(_EMBEDDING) or layer.name == _OPTIMIZER:
        return []
    return [
        {
            "name": layer.name if len(tables) == 1 else f"{layer.name}/{name}",
            "rows": values.shape[0],
            "width": values.shape[1],
            "type": values.dtype.name,
            "bytes": values.nbytes,
        }
        for name, values in tables.items()
    ]
