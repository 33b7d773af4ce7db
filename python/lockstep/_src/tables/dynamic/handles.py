"""A table's resource: the operations that name it, make it and let it go."""

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
    """What a table is made of.

    Attributes:
      dim: D.
      key_dtype: of its keys.
      row_type: of its rows.
      start: what rows begin with.
      attributes: what `options.attributes` makes of its options.
    """

    dim: int
    key_dtype: tf.DType
    row_type: tf.DType
    start: initial_rows.Initial
    attributes: dict[str, Any]


class Handle(NamedTuple):
    """A table to TensorFlow.

    Attributes:
      tensor: names it.
      shared_name: of the resource.
      create: makes the table, as it begins, without keys; of operations of that name in a graph.
      initializer: in a graph, the operation that makes it.
      is_ready: in a graph, whether it has been made.
    """

    tensor: tf.Tensor
    shared_name: str
    create: Callable[..., Any]
    initializer: tf.Operation | None
    is_ready: tf.Tensor | None


def make(name: str, scope_name: str, spec: Spec) -> Handle:
    """A handle, and what makes its table: under eager execution, the table as well.

    Args:
      name: of the table.
      scope_name: of the operations in a graph.
      spec: see there.
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
    """Tells TensorFlow what a handle reads, as a graph's operation does (tf/embedding/dynamic_table_ops.cc)."""
    data = _HandleData(is_set=True)
    data.shape_and_type.append(_ShapeAndType(shape=tf.TensorShape([0, dim]).as_proto(), dtype=types_pb2.DT_FLOAT))
    handle._handle_data = data


def destroy(handle: Any) -> None:
    """Lets a table go, whatever state the program is in."""
    with contextlib.suppress(Exception), tf.init_scope():
        tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
