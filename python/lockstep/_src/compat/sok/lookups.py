"""Lookups in tables on all ranks: pooled (`lookup_sparse`) and row by row (`all2all_dense_embedding`).

Gradients have SOK's convention: a row's gradient is the sum over the ranks of the gradients of their losses. Lookups in
all tables of a call are grouped into one exchange by the engine, in a graph or a `tf.function`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from lockstep._src.compat.sok import job
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.rows import is_sok
from lockstep._src.tables.pooling import fused, lookup_pooled
from lockstep._src.tables.sharded import lookup_steps
from lockstep._src.tables.sharded.lookup_steps import DistinctRows

Ids: TypeAlias = tf.SparseTensor | tf.RaggedTensor
_COMBINERS = ("sum", "mean")


@tf.autograph.experimental.do_not_convert
def lookup_sparse(params: Any, sp_ids: Any, sp_weights: Any, combiners: Any, filtering: bool) -> Any:
    """Returns combined rows for each table; see `sparse_operation_kit.lookup_sparse`."""
    is_list = isinstance(sp_ids, (list, tuple))
    params, sp_ids = _listed(params), _listed(sp_ids)
    _check_count("sp_ids", sp_ids, params)
    sp_weights = [None] * len(params) if sp_weights is None else _listed(sp_weights)
    _check_count("sp_weights", sp_weights, params)
    combiners = ["mean"] * len(params) if combiners is None else [_text(one) for one in _listed(combiners)]
    _check_count("combiners", combiners, params)
    for combiner in combiners:
        if combiner not in _COMBINERS:
            raise ValueError(f"combiners: got {combiner!r}, wanted 'sum' or 'mean'")
    found = [_pooled(*one, filtering) for one in zip(params, sp_ids, sp_weights, combiners, strict=True)]
    return found if is_list else found[0]


@tf.autograph.experimental.do_not_convert
def all2all_dense_embedding(param: Any, indices: Any) -> tf.Tensor:
    """Returns a row for each id; see `sparse_operation_kit.all2all_dense_embedding`."""
    if not is_sok(param):
        return tf.nn.embedding_lookup(_checked(param), indices)
    ids = _ids(param, tf.convert_to_tensor(indices))
    found = _distinct_rows(param, tf.reshape(ids, [-1]), False)
    rows = tf.gather(found.rows, tf.reshape(found.places, tf.shape(ids)))
    rows.set_shape([*ids.shape, *rows.shape[-1:]])
    return tf.cast(rows, param.dtype)


@tf.autograph.experimental.do_not_convert
def sparse_read_and_evict(var: Any, indices: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Reads rows of this rank and evicts keys; see `sparse_operation_kit.sparse_read_and_evict`."""
    if not isinstance(var, DynamicVariable) or var.backend_type != "hybrid":
        raise TypeError(
            f"sparse_read_and_evict only use on hybrid backend: got {var!r}, wanted a DynamicVariable of "
            "var_type='hybrid'"
        )
    if isinstance(indices, tf.RaggedTensor):
        raise TypeError(f"indices: got {indices!r}, wanted a tensor of keys")
    return var.read_and_evict(_ids(var, tf.convert_to_tensor(indices)))


def _pooled(table: Any, ids: Any, weights: Any, combiner: str, filtering: bool) -> tf.Tensor:
    """Returns the rows of a table combined by example, [B, D]."""
    ids, weights = _matrix("sp_ids", ids), None if weights is None else _matrix("sp_weights", weights)
    if weights is not None and isinstance(weights, tf.SparseTensor) != isinstance(ids, tf.SparseTensor):
        ids, weights = _ragged(ids), _ragged(weights)
    if weights is not None:
        _check_structure(ids, weights)
    with tf.name_scope("lookup_sparse"):
        if not is_sok(table):
            return lookup_pooled(_checked(table), ids, weights, combiner)
        if not table.dtype.is_floating:
            raise TypeError(f"rows of '{table.logical_name}' are {table.dtype.name}, wanted a floating-point type")
        pooled = _combined(table, ids, None if weights is None else weights.values, combiner, filtering)
        batch = ids.shape[0] if ids.shape.rank else None
        pooled.set_shape([batch, *pooled.shape[1:]])
        return tf.cast(pooled, table.dtype)


class _Table(NamedTuple):
    """The properties of a table that errors of a lookup need."""

    logical_name: str
    has_route: bool


def _combined(table: Any, ids: Ids, weights: tf.Tensor | None, combiner: str, filtering: bool) -> tf.Tensor:
    has_route = job.is_shared() if isinstance(table, DynamicVariable) else table.shard.world_size > 1
    about = _Table(table.logical_name, has_route)
    given = fused.Pooled(_ids(table, ids.values), fused.splits_of(ids, True, about), weights)
    if has_route:
        given = fused.checked(given, about)
    splits, problem = given.examples
    found = _distinct_rows(table, given.ids, filtering, problem)
    return fused.pool(found, splits, given.weights, combiner, table=table.logical_name)


def _distinct_rows(table: Any, ids: tf.Tensor, filtering: bool, problem: tf.Tensor | None = None) -> DistinctRows:
    """Returns the row of each distinct id from its owner."""
    if isinstance(table, DynamicVariable):
        return table.distinct_rows_of_job(ids, filtering, problem)
    return lookup_steps.distinct_rows(table, ids, table.shard, table.logical_name, table.sums_gradients, problem)


def _checked(table: Any) -> tf.Variable:
    """Returns another variable; it may be a table of a scope, of any placement. Raises TypeError for others."""
    if not isinstance(table, tf.Variable):
        raise TypeError(f"params: got {table!r}, wanted sok.Variable, sok.DynamicVariable or a table of a scope")
    return table


def _ids(table: Any, ids: tf.Tensor) -> tf.Tensor:
    """Returns ids as int32 or int64; raises TypeError for others."""
    if not ids.dtype.is_integer:
        raise TypeError(f"ids of '{table.logical_name}' are {ids.dtype.name}, wanted integers")
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)


def _matrix(what: str, ids: Any) -> Ids:
    is_matrix = isinstance(ids, tf.SparseTensor) or (isinstance(ids, tf.RaggedTensor) and ids.ragged_rank == 1)
    if not is_matrix:
        raise TypeError(f"{what}: got {ids!r}, wanted tf.SparseTensor or tf.RaggedTensor [examples, ids]")
    return ids


def _check_structure(ids: Ids, weights: Ids) -> None:
    """Raises ValueError if weights and ids differ in structure; in a graph, the values may be unknown."""
    part = "indices" if isinstance(ids, tf.SparseTensor) else "row_splits"
    of_ids, of_weights = (tf.get_static_value(getattr(one, part)) for one in (ids, weights))
    if of_ids is not None and of_weights is not None and not np.array_equal(of_ids, of_weights):
        raise ValueError("sp_weights: got another structure than in sp_ids, wanted one weight for each id")


def _ragged(ids: Ids) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_sparse(ids) if isinstance(ids, tf.SparseTensor) else ids


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _check_count(what: str, given: Sequence[Any], params: Sequence[Any]) -> None:
    if len(given) != len(params):
        raise CountError(f"{what}: got {len(given)}, wanted {len(params)}, one for each of params")


class CountError(ValueError, RuntimeError):
    """Lists of different lengths; the original raises RuntimeError or AssertionError."""
