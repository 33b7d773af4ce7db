"""Helpers of lookups in a dynamic table: how often each id occurs, and the gradient.

Letters: N keys, M keys that this worker looks up for all workers, D the dimension of a row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import cond_v2, while_v2

from lockstep._src.engine.thread_value import ThreadValue

_pooled: ThreadValue[tf.Tensor | None] = ThreadValue(None)


def pooling(ids: tf.Tensor) -> contextlib.AbstractContextManager[None]:
    """Marks lookups inside the block as lookups of the distinct elements of `ids`."""
    return _pooled.holding(ids)


def times_seen(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Returns `ids` before TensorFlow dropped the duplicates; None if it has not, or if this is not known.

    `embedding_lookup_sparse` looks up distinct ids. A table that counts needs the number of each id. A program's own
    `tf.unique` is recognized if it is an operation of the same graph; otherwise each id counts once.

    Returns:
      The ids with duplicates, [N], and the place of each among the distinct ones, [N] int32.
    """
    pooled = _pooled.value
    if pooled is not None:
        # In both, distinct ids are in the order of their first occurrence.
        return pooled, tf.unique(pooled).idx
    if tf.executing_eagerly() or not hasattr(ids, "op"):
        return None
    while ids.op.type == "Identity":
        ids = ids.op.inputs[0]
    # The other outputs of the operation are places and counts.
    if ids.op.type not in ("Unique", "UniqueWithCounts") or ids.value_index != 0:
        return None
    return ids.op.inputs[0], tf.cast(ids.op.outputs[1], tf.int32)


@tf.RegisterGradient("LockstepDynamicTableResolve")
def _gradient_of_resolve(op: tf.Operation, grad: Any, _: Any) -> list[Any]:
    numbers = op.outputs[1]
    if tf.compat.as_str(op.get_attr("gradients_by")) == "key":
        # An update searches the keys' rows, which the lookup may have to add first. Grappler would bypass a reshape,
        # and its dependency as well.
        keys = tf.reshape(tf.cast(op.inputs[1], tf.int64), [-1])
        with tf.control_dependencies([numbers]):
            numbers = tf.identity(keys)
    dim = tf.compat.dimension_value(op.outputs[0].shape[-1])
    shape = _dense_shape(op.outputs[0], dim)
    if isinstance(grad, tf.IndexedSlices) and op.inputs[1].shape.rank == 1:
        # A gather followed the lookup.
        return [tf.IndexedSlices(grad.values, tf.gather(numbers, grad.indices), shape), None, None]
    return [tf.IndexedSlices(tf.reshape(tf.convert_to_tensor(grad), [-1, dim]), numbers, shape), None, None]


def _dense_shape(rows: tf.Tensor, dim: int) -> tf.Tensor | None:
    """Returns the dense shape of the gradient of `rows`: None, so that a conversion to dense form raises an error.

    In `tf.cond` it is [0, D]. There the gradients of all branches must have one structure, and a branch without a
    lookup has zeros of the handle's shape, which has no rows.

    Raises:
      NotImplementedError: the gradient is in a loop, where TensorFlow sums gradients as if there were a row 0.
    """
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    is_in_branch = any(flow.IsCondContext() for flow in _contexts(rows.op._get_control_flow_context()))
    # Among TensorFlow 1's loops, only loops of gradients have a `grad_state`.
    is_in_loop = any(getattr(flow, "grad_state", None) for flow in _contexts(graph._get_control_flow_context()))
    while graph is not None:
        is_in_loop |= isinstance(graph, while_v2._WhileBodyGradFuncGraph)
        is_in_branch |= isinstance(graph, cond_v2._CondGradFuncGraph)
        graph = getattr(graph, "outer_graph", None)
    if is_in_loop:
        raise NotImplementedError(
            "got a lookup of a dynamic table inside a loop (tf.while_loop, tf.map_fn or a loop of a tf.function) and "
            "its gradient outside. Look up all keys before the loop, and use their rows in it"
        )
    return tf.constant([0, dim]) if is_in_branch else None


def _contexts(inner: Any) -> Iterator[Any]:
    """Yields the branches and loops of TensorFlow 1 around an operation, the innermost first."""
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
