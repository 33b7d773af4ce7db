"""Lookups whose rows are combined per example, of tables of this library and of other variables.

TensorFlow has two functions for it. `tf.nn.embedding_lookup_sparse` omits the rows after the last example that has ids.
`safe_embedding_lookup_sparse` looks up id 0 for examples without ids. A dynamic table would take this id for a key, and
for strings there is no such id. `lookup_pooled` returns a row for each example, and looks up no other id.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.tables.dynamic.variable import DynamicVariable
from lockstep._src.tables.pooling import fused
from lockstep._src.tables.sharded.table import RowShardedTable

Ids = tf.SparseTensor | tf.RaggedTensor

TABLES = (RowShardedTable, DynamicVariable)


def table_of(params: Any) -> Any:
    """Returns the table if a lookup in `params` can be fused; None if TensorFlow's own operations have to make it."""
    if isinstance(params, (list, tuple)):
        params = params[0] if len(params) == 1 else None
    if not isinstance(params, TABLES) or not context.options.fused_lookups:
        return None
    return params if params.dtype.is_floating else None


def lookup_fused(
    table: Any,
    ids: Ids,
    weights: Ids | None,
    combiner: str,
    max_norm: float | None = None,
    batch: tf.Tensor | None = None,
    fill: bool = False,
) -> tf.Tensor:
    """Returns rows of a table, combined per example, by fused operations.

    Args:
      table: [rows, D...], as `table_of` returns it.
      ids: [B, ...], sorted by example; ragged ids have two dimensions.
      weights: as `ids`; None: all weights are 1.
      combiner: 'sum', 'mean' or 'sqrtn'.
      max_norm: rows are clipped to this norm before they are combined; None: they aren't.
      batch: see `fused.splits_of`.
      fill: whether row 0 gets a gradient of zero if an example has no ids. TensorFlow's safe lookup has this effect,
        which changes row 0 with optimizers such as FTRL.

    Returns:
      [B, D...].
    """
    values = None if weights is None else weights.values
    return combine(table, ids.values, fused.splits_of(ids, batch), values, combiner, max_norm, fill)


def combine(
    table: Any,
    ids: tf.Tensor,
    splits: tf.Tensor,
    weights: tf.Tensor | None,
    combiner: str,
    max_norm: float | None,
    fill: bool = False,
) -> tf.Tensor:
    """Returns what `lookup_fused` does, for ids [N] whose examples begin at `splits` [B + 1]; weights: [N]."""
    if fill:
        is_any_empty = tf.reduce_any(tf.equal(splits[1:], splits[:-1]))
        filler = tf.zeros([tf.cast(is_any_empty, tf.int32)], ids.dtype)
        found = table.distinct_rows(tf.concat([ids, filler], 0))
        found = found._replace(places=found.places[: tf.size(ids)])
    else:
        found = table.distinct_rows(ids)
    pooled = fused.pool(found, splits, weights, combiner, max_norm)
    # Rows of 16 bits in a dynamic table are computed in float32, and so they were combined.
    return tf.cast(pooled, table.dtype)


def lookup_pooled(
    table: Any, ids: Ids, weights: Ids | None, combiner: str, max_norm: float | None = None, fill: bool = False
) -> tf.Tensor:
    """Returns rows of a table, combined per example.

    Args:
      table: [rows, D], a variable of any kind.
      ids: [B..., L], sorted by row; integers, or strings if the table's keys are strings. Ragged ids are [B, L].
      weights: as `ids`; None: all weights are 1.
      combiner: 'sum', 'mean' or 'sqrtn'.
      max_norm: rows are clipped to this norm before they are combined; None: they aren't.
      fill: see `lookup_fused`.

    Returns:
      [B..., D]; zeros for examples without ids.

    Raises:
      ValueError: the rank of `ids` is not known, or less than 2.
    """
    fusible = table_of(table)
    if isinstance(ids, tf.RaggedTensor):
        if fusible is not None and ids.ragged_rank == 1:
            return lookup_fused(fusible, ids, weights, combiner, max_norm, ids.nrows(tf.int64), fill)
        ids, weights = ids.to_sparse(), None if weights is None else weights.to_sparse()
    matrix, batch_shape = _as_matrix(ids)
    if weights is not None:
        weights = matrix.with_values(weights.values)
    if fusible is not None:
        pooled = lookup_fused(fusible, matrix, weights, combiner, max_norm, matrix.dense_shape[0], fill)
    else:
        pooled = tf.compat.v1.nn.embedding_lookup_sparse(table, matrix, weights, combiner=combiner, max_norm=max_norm)
        missing = tf.cast(matrix.dense_shape[0], tf.int32) - tf.shape(pooled)[0]
        pooled = tf.pad(pooled, [[0, missing], *([0, 0] for _ in pooled.shape[1:])])
    known, row = _known_batch(ids), pooled.shape[1:].as_list()
    if len(known) != 1:
        pooled = tf.reshape(pooled, tf.concat([batch_shape, tf.shape(pooled)[1:]], 0))
    return tf.ensure_shape(pooled, [*known, *row])


def lookup_valid(
    table: Any,
    ids: tf.SparseTensor,
    weights: tf.SparseTensor | None,
    combiner: str,
    max_norm: float | None = None,
    default_id: Any = None,
) -> tf.Tensor:
    """Returns what `lookup_pooled` does, without invalid ids: those below 0, and ids that are not summed whose weight
    is not positive.

    Args:
      table: see `lookup_pooled`.
      ids: [B..., L], sorted by row.
      weights: as `ids`; None: all weights are 1.
      combiner: see `lookup_pooled`.
      max_norm: see `lookup_pooled`.
      default_id: the id of examples that have no valid one, with weight 1; None: they get zeros.
    """
    if ids.dtype.is_integer:
        ids, weights = keep_ids(ids, weights)
    if weights is not None and combiner != "sum":
        ids, weights = keep_positive(ids, weights)
    if default_id is None:
        # To a dynamic table, 0 would be a key.
        return lookup_pooled(table, ids, weights, combiner, max_norm, fill=isinstance(table, RowShardedTable))
    matrix, batch_shape = _as_matrix(ids)
    if weights is not None:
        weights, _ = tf.sparse.fill_empty_rows(matrix.with_values(weights.values), tf.ones([], weights.dtype))
    matrix, _ = tf.sparse.fill_empty_rows(matrix, tf.cast(default_id, ids.dtype))
    pooled = lookup_pooled(table, matrix, weights, combiner, max_norm)
    row = pooled.shape[1:].as_list()
    pooled = tf.reshape(pooled, tf.concat([batch_shape, tf.shape(pooled)[1:]], 0))
    return tf.ensure_shape(pooled, [*_known_batch(ids), *row])


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
