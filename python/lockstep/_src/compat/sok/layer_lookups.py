"""The lookups of the layers of SOK 1.x. A lookup that is not for training adds no keys."""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from lockstep._src.compat.sok import checks, job, lookups, version_1
from lockstep._src.compat.sok.embedding_tables import EmbeddingVariable
from lockstep._src.tables.dynamic import modes

TOOLS = ("Strategy", "MPI", "Horovod", "OneDevice")


def lookup_sparse(table: EmbeddingVariable, sp_ids: Any, slot_num: int, training: Any = True) -> tf.Tensor:
    """Combines the rows of each slot by the combiner of the table's layer; see `embedding_ops.embedding_lookup_sparse`.

    Letters: B examples of a batch on this rank, D the dimension of a row.
    """
    if not isinstance(sp_ids, tf.SparseTensor):
        raise TypeError(f"sp_ids must be SparseTensor: got {sp_ids!r}")
    layer = table.embedding_layer
    _check_keys(table, sp_ids.values)
    batch = version_1.replica_batch_size()
    # Only indices say where keys are: sok.Init sets the batch, regardless of the tensor's own shape.
    slots = tf.SparseTensor(
        _checked_rows(table, sp_ids.indices, batch * slot_num), sp_ids.values, [batch * slot_num, 1]
    )
    with _mode(training):
        pooled = lookups.lookup_sparse(table, slots, None, layer.combiner, False)
    return tf.cast(tf.reshape(pooled, [batch, slot_num, table.dim]), layer.compute_dtype)


def lookup_dense(table: EmbeddingVariable, values: Any, training: Any = True, dynamic_input: bool = False) -> tf.Tensor:
    """Returns a row for each key; see `embedding_ops.embedding_lookup`."""
    if isinstance(values, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(f"values must be a tensor: got {values!r}")
    values = tf.convert_to_tensor(values)
    _check_keys(table, values)
    rank, wanted = values.shape.rank, 1 if dynamic_input else 3
    if rank not in (None, wanted):
        raise ValueError(
            f"table '{table.m_var_name}': inputs have the shape {values.shape}, wanted "
            + ("[keys], as dynamic_input is True" if dynamic_input else "[batch, slot_num, nnz_per_slot]")
        )
    with _mode(training):
        rows = lookups.all2all_dense_embedding(table, values)
    return tf.cast(rows, table.embedding_layer.compute_dtype)


def global_replica_id(comm_tool: Any = None, var: Any = None) -> int:
    """Returns this process's rank; see `embedding_ops.get_global_replica_id`."""
    del var
    if comm_tool not in TOOLS:
        raise RuntimeError(
            "SparseOperationKit can only works with tf.distribute.Strategy, MPI, Horovod or single GPU. But got "
            f"{comm_tool!r}, wanted one of {', '.join(map(repr, TOOLS))}"
        )
    return job.rank()


def _mode(training: Any) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which lookups are for training or not."""
    known = tf.get_static_value(training) if tf.is_tensor(training) else training
    if known is None:
        raise TypeError(f"training: got {training!r}, wanted True or False")
    return contextlib.nullcontext() if known else modes.evaluating()


def _check_keys(table: EmbeddingVariable, keys: tf.Tensor) -> None:
    if keys.dtype == table.keys_are:
        return
    message = f"table '{table.m_var_name}': keys are {keys.dtype.name}, wanted {table.keys_are.name}, the key_dtype"
    if keys.dtype.is_floating:
        message += f"; a Sequential model of Keras 3 needs keras.Input(..., dtype='{table.keys_are.name}') for this"
    raise TypeError(message)


def _checked_rows(table: EmbeddingVariable, indices: tf.Tensor, count: int) -> tf.Tensor:
    """Returns indices; running it raises InvalidArgumentError if one is out of the batch."""
    if indices.shape.rank not in (None, 2):
        raise ValueError(f"sp_ids: indices have the shape {indices.shape}, wanted [keys, 2]")
    message = (
        f"table '{table.m_var_name}': sp_ids have more rows than a rank's batch has slots, which is "
        f"global_batch_size / ranks * slot_num: wanted rows up to {count - 1}, got row"
    )
    with checks.at_most(tf.reduce_max(tf.concat([indices[:, 0], [-1]], 0)), count - 1, message):
        return tf.identity(indices)
