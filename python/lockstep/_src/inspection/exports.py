"""Descriptions of exported models: signatures, tables, sizes."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2, trackable_object_graph_pb2

from lockstep._src.inspection import checkpoints
from lockstep._src.inspection.description import Description, InspectError

FILE = "saved_model.pb"
_HIDDEN = "__saved_model_init_op"
# The ends of the names that `lockstep.keras.export` gives to a dynamic table's rows and keys.
_ROWS, _KEYS = "/embeddings", "/keys"


def describe(folder: str) -> Description:
    """Describes a SavedModel.

    Args:
      folder: The folder with `saved_model.pb`.

    Raises:
      InspectError: the file or the variables are damaged.
    """
    path = os.path.join(folder, FILE)
    try:
        return _describe(folder, path)
    except InspectError:
        raise
    except Exception as error:  # anything may be wrong with a message that has the right form
        raise InspectError(f"{path} is damaged, or is not a SavedModel: {type(error).__name__}: {error}") from None


def _describe(folder: str, path: str) -> Description:
    model = saved_model_pb2.SavedModel()
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            model.ParseFromString(file.read())
    except (DecodeError, tf.errors.OpError) as error:
        raise InspectError(f"{path} is damaged, or is not a SavedModel: {error}") from None
    if not model.meta_graphs:
        raise InspectError(f"{path} has no graph: it is empty, or is not a SavedModel")
    prefix = os.path.join(folder, "variables", "variables")
    variables = checkpoints.describe(prefix) if tf.io.gfile.exists(f"{prefix}.index") else {}
    tensors = _named(prefix, variables.get("tensors", []))
    tables, embeddings, tensors = _tables(tensors)
    info = model.meta_graphs[0].meta_info_def
    # Links to folders, which might be circles, are not followed.
    names = [os.path.join(at, name) for at, _, files in os.walk(folder) for name in files]
    return {
        "export": folder,
        "written_by": f"TensorFlow {info.tensorflow_version}",
        "tags": [tag for graph in model.meta_graphs for tag in graph.meta_info_def.tags]
        and ", ".join("+".join(graph.meta_info_def.tags) for graph in model.meta_graphs),
        "graph_bytes": tf.io.gfile.stat(path).length,
        "bytes": sum(os.lstat(name).st_size for name in names),
        "signatures": [
            {
                "name": name,
                "method": signature.method_name,
                "inputs": _tensors(signature.inputs),
                "outputs": _tensors(signature.outputs),
            }
            for graph in model.meta_graphs
            for name, signature in sorted(graph.signature_def.items())
            if name != _HIDDEN
        ],
        "dynamic tables": [*variables.get("dynamic tables", []), *tables],
        "embedding tables": embeddings,
        "tensors": tensors,
    }


def _named(prefix: str, tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the tensors of an export with the names of their variables, each variable once.

    Keras tracks each weight in two ways, so its exports hold the values twice. Tensors are copies if the names of their
    variables and their checksums are the same. `copies` has their number, and `bytes` the size of all.
    """
    content, checksums = checkpoints.object_graph(prefix) if tensors else (b"", {})
    if not content:
        return tensors
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(content)
    names = {one.checkpoint_key: one.full_name for node in graph.nodes for one in node.attributes}
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in tensors:
        key = one["name"]
        name = names.get(key) or key
        row = rows.setdefault((name, one["type"], one["shape"], checksums.get(key)), {**one, "name": name, "copies": 0})
        row["copies"] += 1
        row["bytes"] += one["bytes"] if row["copies"] > 1 else 0
    return [{**row, "copies": row["copies"] if row["copies"] > 1 else None} for row in rows.values()]


def _tables(tensors: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the dynamic tables of an export of Keras, its other embedding tables, and all other tensors."""
    keys = {one["name"].removesuffix(_KEYS): one for one in tensors if one["name"].endswith(_KEYS)}
    dynamic, embeddings, rest = [], [], []
    for one in tensors:
        name, sizes = one["name"].removesuffix(_ROWS), one["shape"].split("x")
        if not one["name"].endswith(_ROWS) or len(sizes) != 2:
            rest.append(one)
            continue
        rows, width = map(int, sizes)
        table = {"name": name, "rows": rows, "width": width, "type": one["type"], "bytes": one["bytes"]}
        # One more row is for all other keys.
        if name in keys and keys[name]["shape"] == str(rows - 1):
            of_keys = keys[name]
            dynamic.append({**checkpoints.EMPTY_TABLE, "name": name, "rows": rows - 1, "width": width})
            dynamic[-1] |= {"keys": of_keys["type"], "bytes": one["bytes"] + of_keys["bytes"]}
        else:
            embeddings.append(table)
    taken = {f"{one['name']}{_KEYS}" for one in dynamic}
    return dynamic, embeddings, [one for one in rest if one["name"] not in taken]


def _tensors(tensors: Any) -> list[str]:
    return [f"{name}: {_type(tensor)}" for name, tensor in sorted(tensors.items())]


def _type(tensor: Any) -> str:
    shape = tensor.tensor_shape
    sizes = "?" if shape.unknown_rank else ", ".join("?" if dim.size < 0 else str(dim.size) for dim in shape.dim)
    return f"{tf.dtypes.as_dtype(tensor.dtype).name} [{sizes}]"
