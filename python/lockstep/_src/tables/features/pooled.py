"""Lookup of sparse ids that returns a row for each example, also for examples without ids.

TensorFlow has two functions for it. `tf.nn.embedding_lookup_sparse` omits the rows after the last example that has ids.
`safe_embedding_lookup_sparse` looks up id 0 for examples without ids. A dynamic table would take this id for a key, and
for strings there is no such id.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

COMBINERS = ("sum", "mean", "sqrtn")


def lookup_pooled(
    table: Any, ids: tf.SparseTensor, weights: tf.SparseTensor | None, combiner: str, max_norm: float | None = None
) -> tf.Tensor:
    """Returns rows of a table, combined per example.

    Args:
      table: [rows, D], a variable of any kind.
      ids: [B..., L], sorted by row; integers, or strings if the table's keys are strings.
      weights: as `ids`; None: all weights are 1.
      combiner: 'sum', 'mean' or 'sqrtn'.
      max_norm: rows are clipped to this norm before they are combined; None: they aren't.

    Returns:
      [B..., D]; zeros for examples without ids.

    Raises:
      ValueError: the rank of `ids` is not known, or less than 2.
    """
    matrix, batch_shape = _as_matrix(ids)
    if weights is not None:
        weights = matrix.with_values(weights.values)
    pooled = tf.compat.v1.nn.embedding_lookup_sparse(table, matrix, weights, combiner=combiner, max_norm=max_norm)
    width = pooled.shape[1:].as_list()
    missing = tf.cast(matrix.dense_shape[0], tf.int32) - tf.shape(pooled)[0]
    padded = tf.pad(pooled, [[0, missing], *([0, 0] for _ in width)])
    known = _known_batch(ids)
    if len(known) == 1:
        return tf.ensure_shape(padded, [*known, *width])
    return tf.ensure_shape(tf.reshape(padded, tf.concat([batch_shape, tf.shape(padded)[1:]], 0)), [*known, *width])


def _as_matrix(ids: tf.SparseTensor) -> tuple[tf.SparseTensor, tf.Tensor]:
    """Returns the ids as [B, L], and the shape of B."""
    batch_shape = tf.cast(ids.dense_shape[:-1], tf.int32)
    if ids.shape.rank == 2:
        return ids, batch_shape
    if ids.shape.rank is not None and ids.shape.rank < 2:
        raise ValueError(f"sparse ids have shape {ids.shape}, wanted [batch..., ids]")
    # -1 would not work here, because the batch or its examples may be empty.
    rows = tf.reduce_prod(ids.dense_shape[:-1], keepdims=True)
    return tf.sparse.reshape(ids, tf.concat([rows, ids.dense_shape[-1:]], 0)), batch_shape


def _known_batch(ids: tf.SparseTensor) -> list[int | None]:
    if ids.shape.rank is None:
        raise ValueError("sparse ids are of unknown rank, wanted [batch..., ids]")
    return ids.shape[:-1].as_list()


def keep_ids(ids: tf.SparseTensor, weights: tf.SparseTensor | None) -> tuple[tf.SparseTensor, tf.SparseTensor | None]:
    """Returns both without the entries whose id is below 0; in a feature column such an id means "no value"."""
    kept = ids.values >= 0
    return tf.sparse.retain(ids, kept), None if weights is None else tf.sparse.retain(weights, kept)


def keep_positive(ids: tf.SparseTensor, weights: tf.SparseTensor) -> tuple[tf.SparseTensor, tf.SparseTensor]:
    """Returns both without the entries whose weight is not positive, as feature columns do unless they sum."""
    kept = weights.values > 0
    return tf.sparse.retain(ids, kept), tf.sparse.retain(weights, kept)
