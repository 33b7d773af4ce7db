"""Lookups in a dynamic table beside their operations: how often ids were there, and the gradient.

Letters: N keys, M keys that this worker serves to all, D the dimension of a row.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import cond_v2, while_v2


class _Pooling(threading.local):
    ids: tf.Tensor | None = None


_pooling = _Pooling()


@contextlib.contextmanager
def pooling(ids: tf.Tensor) -> Iterator[None]:
    """Inside, what is looked up are the distinct ones of `ids`."""
    before, _pooling.ids = _pooling.ids, ids
    try:
        yield
    finally:
        _pooling.ids = before


def times_seen(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
    """What `ids` were before TensorFlow dropped the duplicates; None where it has not, or where that can't be told.

    `embedding_lookup_sparse` looks distinct ids up. A table that counts wants to know how often each was there. A
    program's own `tf.unique` is seen where it is an operation of the same graph; else each id counts once.

    Returns:
      The ids with duplicates, [N], and the place of each among the distinct ones, [N] int32.
    """
    pooled = _pooling.ids
    if pooled is not None:
        # Distinct ids stand in the order in which they first come, here as there.
        return pooled, tf.unique(pooled).idx
    if tf.executing_eagerly() or not hasattr(ids, "op"):
        return None
    while ids.op.type == "Identity":
        ids = ids.op.inputs[0]
    # The other outputs are places and counts.
    if ids.op.type not in ("Unique", "UniqueWithCounts") or ids.value_index != 0:
        return None
    return ids.op.inputs[0], tf.cast(ids.op.outputs[1], tf.int32)


@tf.RegisterGradient("LockstepDynamicTableResolve")
def _gradient_of_resolve(op: tf.Operation, grad: Any, _: Any) -> list[Any]:
    numbers = op.outputs[1]
    dim = tf.compat.dimension_value(op.outputs[0].shape[-1])
    shape = _dense_shape(op.outputs[0], dim)
    if isinstance(grad, tf.IndexedSlices) and op.inputs[1].shape.rank == 1:
        # A gather followed the lookup.
        return [tf.IndexedSlices(grad.values, tf.gather(numbers, grad.indices), shape), None, None]
    return [tf.IndexedSlices(tf.reshape(tf.convert_to_tensor(grad), [-1, dim]), numbers, shape), None, None]


def _dense_shape(rows: tf.Tensor, dim: int) -> tf.Tensor | None:
    """Of the gradient of `rows`: none, as there is none, and who asks for the dense form gets an error.

    Only `tf.cond` wants one: the gradient of a branch that looks nothing up is zeros of the shape that the handle has,
    no rows, and those of all branches have to be of one structure.

    Raises:
      NotImplementedError: in a loop, where TensorFlow sums gradients up as if there was a row 0.
    """
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    is_in_branch = any(flow.IsCondContext() for flow in _contexts(rows.op._get_control_flow_context()))
    # Of TensorFlow 1's loops only those of gradients know what they are the gradient of.
    is_in_loop = any(getattr(flow, "grad_state", None) for flow in _contexts(graph._get_control_flow_context()))
    while graph is not None:
        is_in_loop |= isinstance(graph, while_v2._WhileBodyGradFuncGraph)
        is_in_branch |= isinstance(graph, cond_v2._CondGradFuncGraph)
        graph = getattr(graph, "outer_graph", None)
    if is_in_loop:
        raise NotImplementedError(
            "a dynamic table is looked up inside of a tf.while_loop, tf.map_fn or a loop of a tf.function, and its "
            "gradient is taken outside: look all keys up before the loop, and use their rows in it"
        )
    return tf.constant([0, dim]) if is_in_branch else None


def _contexts(inner: Any) -> Iterator[Any]:
    """Branches and loops of TensorFlow 1, from within."""
    while inner is not None:
        yield inner
        inner = inner.outer_context


for _name in (
    "LockstepDynamicTableLookup",
    "LockstepDynamicTableCount",
    "LockstepDynamicTableCounts",
    "LockstepDynamicTableExport",
    "LockstepDynamicTableReadRows",
):
    tf.no_gradient(_name)
