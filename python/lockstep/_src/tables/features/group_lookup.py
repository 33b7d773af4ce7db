"""Lookups of several tables in one call: DeepRec's `tf.nn.group_embedding_lookup` and `..._sparse`.

Each call makes one lookup per table. A pass over the executed graph gives all of them one exchange (docs/sharding.md).
It does the same for lookups that are written one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.tables.pooling import COMBINERS, lookup_pooled


def group_embedding_lookup(
    params: Any, ids: Any, partition_strategy: str = "mod", name: str | None = None
) -> list[tf.Tensor]:
    """Returns rows of several tables by dense ids; after DeepRec's `tf.nn.group_embedding_lookup` (Group-Embedding.md).

    Args:
      params: a table or a list of tables: variables [rows, D], sharded or not, or embedding variables.
      ids: for each table integers [N...], or strings if its keys are strings.
      partition_strategy: must be 'mod'.
      name: the name of the operations.

    Returns:
      For each table [N..., D]. Gradients of ordinary variables work here, although they fail in DeepRec.

    Raises:
      ValueError: the number of ids differs from the number of tables, or the `partition_strategy` is another one.
    """
    tables = _checked("group_embedding_lookup", params, partition_strategy)
    ids = _as_many("group_embedding_lookup", "ids", ids, tables)
    with tf.name_scope(name or "group_embedding_lookup"):
        return [tf.nn.embedding_lookup(table, one) for table, one in zip(tables, ids, strict=True)]


def group_embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    combiners: Any,
    sp_weights: Any = None,
    partition_strategy: str = "mod",
    is_sequence: bool = False,
    params_num_per_group: int = sys.maxsize,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Returns rows of several tables by sparse ids; after DeepRec's function of this name (Group-Embedding.md).

    Args:
      params: a table or a list of tables: variables [rows, D], sharded or not, or embedding variables.
      sp_ids: for each table a `tf.SparseTensor` or `tf.RaggedTensor` [B, L].
      combiners: 'sum', 'mean' or 'sqrtn': one for each table, or one for all; None: 'mean'. Each table uses its own
        combiner. In DeepRec, tables of one width form a group, which uses the last table's combiner for all.
      sp_weights: for each table weights of the shape of its ids, or None; None: all weights are 1.
      partition_strategy: must be 'mod'.
      is_sequence: whether rows are returned without being combined.
      params_num_per_group: accepted without effect: a run has one exchange for all tables.
      name: the name of the operations.

    Returns:
      For each table [B, D], zeros for examples without ids; for a sequence [B, L, D], zeros in places without an id.

    Raises:
      ValueError: a list has another length than `params`; a combiner or the `partition_strategy` is unknown; a sequence
        has weights; `params_num_per_group` is not positive.
      TypeError: ids or weights are neither sparse nor ragged.
    """
    who = "group_embedding_lookup_sparse"
    tables = _checked(who, params, partition_strategy)
    if params_num_per_group < 1:
        raise ValueError(f"{who}: params_num_per_group is {params_num_per_group}, wanted at least 1")
    ids = [_checked_ids(who, "sp_ids", one) for one in _as_many(who, "sp_ids", sp_ids, tables)]
    combiners = [combiners or "mean"] * len(tables) if combiners is None or isinstance(combiners, str) else combiners
    combiners = _as_many(who, "combiners", combiners, tables)
    for combiner in combiners:
        if combiner not in COMBINERS:
            raise ValueError(f"{who}: a combiner is {combiner!r}, wanted one of {', '.join(COMBINERS)}")
    weights = [None] * len(tables) if sp_weights is None else _as_many(who, "sp_weights", sp_weights, tables)
    weights = [one if one is None else _checked_ids(who, "sp_weights", one) for one in weights]
    if is_sequence and any(one is not None for one in weights):
        raise ValueError(
            f"{who}: got sp_weights with is_sequence=True, wanted None: sp_weights are for rows that are combined"
        )
    with tf.name_scope(name or "group_embedding_lookup"):
        if is_sequence:
            return [_sequence(*pair) for pair in zip(tables, ids, strict=True)]
        return [lookup_pooled(*lookup) for lookup in zip(tables, ids, weights, combiners, strict=True)]


def _checked(who: str, params: Any, partition_strategy: str) -> list[Any]:
    if params is None:
        raise ValueError(f"{who}: params is None, wanted tables")
    if partition_strategy != "mod":
        raise ValueError(f"{who}: partition_strategy is {partition_strategy!r}, wanted 'mod'")
    return list(params) if isinstance(params, (list, tuple)) else [params]


def _as_many(who: str, what: str, values: Any, tables: Sequence[Any]) -> list[Any]:
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    if len(values) != len(tables):
        raise ValueError(f"{who}: {len(values)} {what} for {len(tables)} tables, wanted one for each")
    return values


def _checked_ids(who: str, what: str, value: Any) -> tf.SparseTensor | tf.RaggedTensor:
    if isinstance(value, tf.compat.v1.SparseTensorValue):
        return tf.SparseTensor.from_value(value)
    if not isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(f"{who}: {what} has {value!r}, wanted a tf.SparseTensor or tf.RaggedTensor")
    return value


def _sequence(table: Any, ids: tf.SparseTensor | tf.RaggedTensor) -> tf.Tensor:
    """Returns the rows of a sequence, [B, T, D]; zeros in places without an id."""
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_sparse()
    rows = tf.nn.embedding_lookup(table, ids.values)
    shape = tf.concat([ids.dense_shape, tf.shape(rows, out_type=tf.int64)[1:]], 0)
    return tf.ensure_shape(tf.scatter_nd(ids.indices, rows, shape), [*ids.shape.as_list(), *rows.shape[1:].as_list()])
