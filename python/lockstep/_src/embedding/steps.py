"""The steps of a lookup in a dynamic table, as functions on tensors; see sharding/steps.py for those that communicate.

Letters: N keys, M keys that this worker serves to all, D the dimension of a row.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lockstep._src import library

# In place of a number of rows (core/sharding/lookup.h).
ANY_KEY, COUNTED_KEYS = -1, -2


def resolve(handle: tf.Tensor, keys: tf.Tensor, times: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """A lookup in training.

    Args:
      handle: of the table.
      keys: of any shape.
      times: [N] int64, how often each key is seen; None for once.

    Returns:
      [keys..., D] float32, and the rows' numbers, [N] int64, which are -1 for keys that are not admitted.
    """
    times = tf.zeros([0], tf.int64) if times is None else times
    return library.ops.lockstep_dynamic_table_resolve(handle, keys, times)


def lookup(handle: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """A lookup in evaluation: [keys..., D] float32."""
    return library.ops.lockstep_dynamic_table_lookup(handle, keys)


def times_seen(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
    """What `ids` were before TensorFlow dropped the duplicates; None where it has not, or where that can't be told.

    `embedding_lookup_sparse` looks distinct ids up. A table that counts wants to know how often each was there.

    Returns:
      The ids with duplicates, [N], and the place of each among the distinct ones, [N] int32.
    """
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
    dim = op.outputs[0].shape[-1]
    if isinstance(grad, tf.IndexedSlices) and op.inputs[1].shape.rank == 1:
        # A gather followed the lookup.
        return [tf.IndexedSlices(grad.values, tf.gather(numbers, grad.indices)), None, None]
    # Without a dense shape: there is none, and who asks for the dense form gets an error.
    return [tf.IndexedSlices(tf.reshape(tf.convert_to_tensor(grad), [-1, dim]), numbers), None, None]


for _name in (
    "LockstepDynamicTableLookup",
    "LockstepDynamicTableCount",
    "LockstepDynamicTableCounts",
    "LockstepDynamicTableExport",
    "LockstepDynamicTableReadRows",
):
    tf.no_gradient(_name)
