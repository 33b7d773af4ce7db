"""Descriptions of exported models: signatures, tables, sizes."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from lockstep._src.inspection import checkpoints
from lockstep._src.inspection.description import Description, InspectError

FILE = "saved_model.pb"
_HIDDEN = "__saved_model_init_op"


def describe(folder: str) -> Description:
    """Describes a SavedModel.

    Args:
      folder: The folder with `saved_model.pb`.

    Raises:
      InspectError: the file or the variables are damaged.
    """
    path = os.path.join(folder, FILE)
    model = saved_model_pb2.SavedModel()
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            model.ParseFromString(file.read())
    except (DecodeError, tf.errors.OpError) as error:
        raise InspectError(f"{path} is damaged, or is no SavedModel: {error}") from None
    if not model.meta_graphs:
        raise InspectError(f"{path} has no graph: it is empty, or is no SavedModel")
    prefix = os.path.join(folder, "variables", "variables")
    variables = checkpoints.describe(prefix) if tf.io.gfile.exists(f"{prefix}.index") else {}
    info = model.meta_graphs[0].meta_info_def
    names = [os.path.join(at, name) for at, _, files in tf.io.gfile.walk(folder) for name in files]
    return {
        "export": folder,
        "written_by": f"TensorFlow {info.tensorflow_version}",
        "tags": [tag for graph in model.meta_graphs for tag in graph.meta_info_def.tags]
        and ", ".join("+".join(graph.meta_info_def.tags) for graph in model.meta_graphs),
        "graph_bytes": tf.io.gfile.stat(path).length,
        "bytes": sum(tf.io.gfile.stat(name).length for name in names),
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
        "dynamic tables": variables.get("dynamic tables", []),
        "tensors": variables.get("tensors", []),
    }


def _tensors(tensors: Any) -> list[str]:
    return [f"{name}: {_type(tensor)}" for name, tensor in sorted(tensors.items())]


def _type(tensor: Any) -> str:
    shape = tensor.tensor_shape
    sizes = "?" if shape.unknown_rank else ", ".join("?" if dim.size < 0 else str(dim.size) for dim in shape.dim)
    return f"{tf.dtypes.as_dtype(tensor.dtype).name} [{sizes}]"
