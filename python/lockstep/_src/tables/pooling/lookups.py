"""Lookups whose rows are combined per example, of tables of this library and of other variables.

TensorFlow has two functions for it. `tf.nn.embedding_lookup_sparse` omits the rows after the last example that has ids.
`safe_embedding_lookup_sparse` looks up id 0 for examples without ids. A dynamic table would take this id for a key, and
for strings there is no such id. `lookup_pooled` returns a row for each example, and looks up no other id.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.engine.host_memory import made_on_host
from lockstep._src.tables.dynamic import modes
from lockstep._src.tables.dynamic.variable import DynamicVariable
from lockstep._src.tables.pooling import fused
from lockstep._src.tables.pooling.replicated import REPLICATED_TABLES
from lockstep._src.tables.sharded.table import RowShardedTable

Ids: TypeAlias = tf.SparseTensor | tf.RaggedTensor

TABLES = (RowShardedTable, DynamicVariable, *REPLICATED_TABLES)


def table_of(params: Any) -> Any:
    """Returns the table if a lookup in `params` can be fused; None if TensorFlow's own operations have to make it."""
    if isinstance(params, (list, tuple)):
        params = params[0] if len(params) == 1 else None
    if not isinstance(params, TABLES) or not params.fuses_lookups or not context.options.fused_lookups:
        return None
    return params if params.dtype.is_floating else None


@made_on_host
def lookup_fused(
    table: Any,
    ids: Ids,
    weights: Ids | None,
    combiner: str,
    max_norm: float | None = None,
    all_examples: bool = False,
) -> tf.Tensor:
    """Returns rows of a table, combined per example, by fused operations.

    Args:
      table: [rows, D...], as `table_of` returns it.
      ids: [B, ...], sorted by example; ragged ids are [B, L].
      weights: as `ids`; None: all weights are 1.
      combiner: 'sum', 'mean' or 'sqrtn'.
      max_norm: rows are clipped to this norm before they are combined; None: they aren't.
      all_examples: see `fused.splits_of`.

    Returns:
      [B, D...].
    """
    given = _pooled(ids, weights, fused.splits_of(ids, all_examples, table))
    # Only the route can raise an error on all workers.
    return combine(table, fused.checked(given, table) if table.has_route else given, combiner, max_norm)


def _pooled(ids: Ids, weights: Ids | None, examples: fused.Examples) -> fused.Pooled:
    return fused.Pooled(ids.values, examples, None if weights is None else weights.values)


@made_on_host
def combine(
    table: Any, given: fused.Pooled, combiner: str, max_norm: float | None, has_fill: bool = False
) -> tf.Tensor:
    """Returns what `lookup_fused` does.

    Args:
      table: see `lookup_fused`.
      given: the ids, which are checked if the table has a route.
      combiner: see `lookup_fused`.
      max_norm: see `lookup_fused`.
      has_fill: whether ids may be [N + 1]: the last one then belongs to no example, and gets a gradient of zero.
    """
    splits, problem = given.examples
    found = table.distinct_rows(given.ids, problem)
    if has_fill:
        found = found._replace(places=found.places[: splits[-1]])
    pooled = fused.pool(found, splits, given.weights, combiner, max_norm, table.logical_name)
    # Rows of 16 bits in a dynamic table are computed in float32, and so they were combined.
    return tf.cast(pooled, table.dtype)


def lookup_pooled(table: Any, ids: Ids, weights: Ids | None, combiner: str, max_norm: float | None = None) -> tf.Tensor:
    """Returns rows of a table, combined per example.

    Args:
      table: [rows, D], a variable of any kind.
      ids: [B..., L], sorted by row; integers, or strings if the table's keys are strings.
      weights: of the shape of `ids`; None: all weights are 1.
      combiner: 'sum', 'mean' or 'sqrtn'.
      max_norm: rows are clipped to this norm before they are combined; None: they aren't.

    Returns:
      [B..., D]; zeros for examples without ids.

    Raises:
      ValueError: the rank of `ids` is not known, or less than 2.
    """
    fusible = table_of(table)
    if fusible is not None and are_ragged_matrices(ids, weights):
        return lookup_fused(fusible, ids, weights, combiner, max_norm, all_examples=True)
    matrix, weights, batch_shape = _as_matrices(ids, weights)
    if fusible is not None:
        pooled = lookup_fused(fusible, matrix, weights, combiner, max_norm, all_examples=True)
    else:
        pooled = tf.compat.v1.nn.embedding_lookup_sparse(table, matrix, weights, combiner=combiner, max_norm=max_norm)
        missing = tf.cast(matrix.dense_shape[0], tf.int32) - tf.shape(pooled)[0]
        pooled = tf.pad(pooled, [[0, missing], *([0, 0] for _ in pooled.shape[1:])])
    return _of_batch(pooled, ids, batch_shape)


def lookup_valid(
    table: Any,
    ids: Ids,
    weights: Ids | None,
    combiner: str,
    max_norm: float | None = None,
    default_id: Any = None,
) -> tf.Tensor:
    """Returns what `lookup_pooled` does, without invalid ids: those below 0, and ids that are not summed whose weight
    is not positive.

    Args:
      table: see `lookup_pooled`.
      ids: see `lookup_pooled`.
      weights: see `lookup_pooled`.
      combiner: see `lookup_pooled`.
      max_norm: see `lookup_pooled`.
      default_id: the id of examples that have no valid one, with weight 1; None: they get zeros.
    """
    fusible = table_of(table)
    if fusible is not None and default_id is None:
        return _lookup_valid_fused(fusible, ids, weights, combiner, max_norm)
    kept_ids, kept_weights, batch_shape = _as_matrices(ids, weights)
    if ids.dtype.is_integer:
        kept_ids, kept_weights = _retain(kept_ids, kept_weights, kept_ids.values >= 0)
    if kept_weights is not None and combiner != "sum":
        kept_ids, kept_weights = _retain(kept_ids, kept_weights, kept_weights.values > 0)
    if default_id is not None:
        if kept_weights is not None:
            kept_weights, _ = tf.sparse.fill_empty_rows(kept_weights, tf.ones([], kept_weights.dtype))
        kept_ids, _ = tf.sparse.fill_empty_rows(kept_ids, tf.cast(default_id, ids.dtype))
    return _of_batch(lookup_pooled(table, kept_ids, kept_weights, combiner, max_norm), ids, batch_shape)


@made_on_host
def _lookup_valid_fused(table: Any, ids: Ids, weights: Ids | None, combiner: str, max_norm: float | None) -> tf.Tensor:
    """Returns what `lookup_valid` does without a default id, for a table as `table_of` returns it."""
    if are_ragged_matrices(ids, weights):
        matrix, batch_shape = ids, None
    else:
        matrix, weights, batch_shape = _as_matrices(ids, weights)
    # TensorFlow looks up id 0 for examples without ids. Its gradient of zero changes row 0 with optimizers such as
    # FTRL. To a dynamic table, 0 would be a key.
    fill = not isinstance(table, DynamicVariable) and modes.is_training()
    given = _pooled(matrix, weights, fused.splits_of(matrix, True, table))
    kept = fused.valid_ids(given, table, positive_weights=combiner != "sum", fill=fill)
    pooled = combine(table, kept, combiner, max_norm, has_fill=fill)
    return pooled if batch_shape is None else _of_batch(pooled, ids, batch_shape)


def are_ragged_matrices(ids: Ids, weights: Ids | None) -> bool:
    """Returns whether ids, and weights if there are any, are ragged [B, L]."""
    return all(
        isinstance(one, tf.RaggedTensor) and one.ragged_rank == 1 and one.flat_values.shape.rank == 1
        for one in (ids, weights)
        if one is not None
    )


def _as_matrices(ids: Ids, weights: Ids | None) -> tuple[tf.SparseTensor, tf.SparseTensor | None, tf.Tensor]:
    """Returns ids and weights as sparse [B, L], and the shape of B."""
    ids, weights = (one.to_sparse() if isinstance(one, tf.RaggedTensor) else one for one in (ids, weights))
    matrix, batch_shape = _as_matrix(ids)
    return matrix, None if weights is None else matrix.with_values(weights.values), batch_shape


def _of_batch(pooled: tf.Tensor, ids: Ids, batch_shape: tf.Tensor) -> tf.Tensor:
    """Returns [B..., D] from rows of all examples."""
    known, row = _known_batch(ids), pooled.shape[1:].as_list()
    if len(known) != 1:
        pooled = tf.reshape(pooled, tf.concat([batch_shape, tf.shape(pooled)[1:]], 0))
    return tf.ensure_shape(pooled, [*known, *row])


def _retain(
    ids: tf.SparseTensor, weights: tf.SparseTensor | None, kept: tf.Tensor
) -> tuple[tf.SparseTensor, tf.SparseTensor | None]:
    """Returns ids and weights without the entries that are not kept."""
    return tf.sparse.retain(ids, kept), None if weights is None else tf.sparse.retain(weights, kept)


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


def _known_batch(ids: Ids) -> list[int | None]:
    if ids.shape.rank is None:
        raise ValueError("sparse ids are of unknown rank, wanted [batch..., ids]")
    return ids.shape[:-1].as_list()
