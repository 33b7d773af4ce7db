"""The lookups of the layers of SOK 1.x, for tables that layers have made. All ranks call them together."""

from typing import Any

import tensorflow as tf

from lockstep._src.compat.sok import layer_lookups

__all__ = ["CommToolSet", "embedding_lookup", "embedding_lookup_sparse", "get_global_replica_id"]

# The names of communications that `get_global_replica_id` knows.
CommToolSet = set(layer_lookups.TOOLS)


def embedding_lookup(
    embedding_variable: Any, values: Any, training: bool = True, dynamic_input: bool = False
) -> tf.Tensor:
    """Returns a row for each key.

    Args:
      embedding_variable: the table of a layer.
      values: keys, [batch, slot_num, nnz_per_slot]; with `dynamic_input` [keys].
      training: whether a new key gets a row; otherwise it reads zeros.
      dynamic_input: whether `values` is one list.

    Returns:
      [..., D], of the layer's type.

    Raises:
      TypeError: keys have another type.
      ValueError: the keys have another rank, or the table has no layer.
      tf.errors.InvalidArgumentError: a key is out of range, or a rank has too many keys.
    """
    return layer_lookups.lookup_dense(embedding_variable, values, training, dynamic_input)


def embedding_lookup_sparse(embedding_variable: Any, sp_ids: Any, slot_num: int, training: bool = True) -> tf.Tensor:
    """Returns the combined rows of each slot.

    Args:
      embedding_variable: the table of a `DistributedEmbedding`, whose combiner counts.
      sp_ids: tf.SparseTensor; row `slot_num * example + slot` has the keys of a slot.
      slot_num: the number of slots of an example.
      training: whether a new key gets a row; otherwise it reads zeros.

    Returns:
      [examples, slot_num, D], of the layer's type; the examples are a rank's part of `sok.Init`'s batch.

    Raises:
      TypeError: keys have another type, or are not a tf.SparseTensor.
      ValueError: the table has no layer.
      tf.errors.InvalidArgumentError: a row or a key is out of range, or a rank has too many keys.
    """
    return layer_lookups.lookup_sparse(embedding_variable, sp_ids, slot_num, training)


def get_global_replica_id(comm_tool: str | None = None, var: Any = None) -> int:
    """Returns this process's rank.

    Args:
      comm_tool: a name of `CommToolSet`; all have the same ranks here.
      var: not used.

    Raises:
      RuntimeError: the name is none of `CommToolSet`, or `sok.Init` was not called.
    """
    return layer_lookups.global_replica_id(comm_tool, var)
