"""A table's resource: the operations that name, create and destroy it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import cpp_shape_inference_pb2, ops

from lockstep._src.engine import library
from lockstep._src.tables.dynamic import initial_rows

_HandleData = cpp_shape_inference_pb2.CppShapeInferenceResult.HandleData
_ShapeAndType = cpp_shape_inference_pb2.CppShapeInferenceResult.HandleShapeAndType


class Spec(NamedTuple):
    """The properties of a table's resource.

    Attributes:
      dim: the dimension D.
      key_dtype: the type of the keys.
      row_type: the type of the rows.
      start: the rows' initial values.
      attributes: the result of `table_options.attributes`.
    """

    dim: int
    key_dtype: tf.DType
    row_type: tf.DType
    start: initial_rows.Initial
    attributes: dict[str, Any]


class Handle(NamedTuple):
    """The operations and the name of a table's resource.

    Attributes:
      tensor: the resource handle.
      shared_name: the name of the resource.
      create: creates the table in its initial state, without keys; it takes the name of the operation.
      initializer: in a graph, the operation that creates the table.
      is_ready: in a graph, a tensor that says whether the table has been created.
    """

    tensor: tf.Tensor
    shared_name: str
    create: Callable[..., Any]
    initializer: tf.Operation | None
    is_ready: tf.Tensor | None


def make(name: str, scope_name: str, spec: Spec) -> Handle:
    """Returns the handle of a table; under eager execution, also creates the table.

    Args:
      name: the name of the table.
      scope_name: the name scope of the operations in a graph.
      spec: the table's properties.
    """
    in_graph = not tf.executing_eagerly()
    shared_name = name if in_graph else f"{name}_{ops.uid()}"
    with ops.device("/device:CPU:0"):
        tensor = library.ops.lockstep_dynamic_table(
            dim=spec.dim, shared_name=shared_name, name=scope_name if in_graph else None
        )
        if not in_graph:
            _set_data(tensor, spec.dim)
        create = functools.partial(
            library.ops.lockstep_dynamic_table_create,
            tensor,
            spec.start.rows,
            table_name=name,
            string_keys=spec.key_dtype == tf.string,
            dim=spec.dim,
            row_type=spec.row_type,
            **spec.start.attributes,
            **spec.attributes,
        )
        initializer = create(name="Initializer" if in_graph else None)
        is_ready = library.ops.lockstep_dynamic_table_is_ready(tensor, name="IsReady") if in_graph else None
    return Handle(tensor, shared_name, create, initializer if in_graph else None, is_ready)


def _set_data(handle: Any, dim: int) -> None:
    """Sets a handle's shape for TensorFlow, as a graph's operation does (tf/table/dynamic_table_ops.cc)."""
    data = _HandleData(is_set=True)
    data.shape_and_type.append(_ShapeAndType(shape=tf.TensorShape([0, dim]).as_proto(), dtype=types_pb2.DT_FLOAT))
    handle._handle_data = data


def destroy(handle: Any) -> None:
    """Destroys a table's resource; never raises, as the program may be ending."""
    with contextlib.suppress(Exception), tf.init_scope():
        tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
