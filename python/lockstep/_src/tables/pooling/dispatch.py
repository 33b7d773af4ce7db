"""Reaches TensorFlow's pooled lookups for tables of this library, by TensorFlow's public dispatch by type.

| function | for a sharded, dynamic or replicated table |
| --- | --- |
| `tf.nn.embedding_lookup_sparse` | the fused operations (`fused.py`) |
| `tf.nn.safe_embedding_lookup_sparse` | the same; a dynamic table looks up no key for examples without ids |
| the same functions of `tf.compat.v1`, with sparse ids | the same |
| the same functions of `tf.compat.v1`, with ragged ids | TensorFlow fills empty examples; a scope fuses the rest |

Feature columns and layers call these functions. The last row needs a scope, which replaces TensorFlow's implementation:
its dispatch allows one target for a call, and has one for ragged ids. With the option `fused_lookups=False`,
TensorFlow's own operations run: unique, gather and segment sum.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Union

import tensorflow as tf
from tensorflow.python.framework import composite_tensor
from tensorflow.python.util import dispatch, tf_decorator

from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables.pooling import fused
from lockstep._src.tables.pooling.lookups import (
    TABLES,
    are_ragged_matrices,
    combine,
    lookup_fused,
    lookup_valid,
    table_of,
)

_Call = dict[str, Any]
# Lists of one table. `table_of` leaves longer lists to TensorFlow, which takes them for parts of one table.
_KINDS: tuple[Any, ...] = (*TABLES, *(types.GenericAlias(list, table) for table in TABLES))
_union: Any = Union  # the members are known only at run time
_TABLES_ARGUMENT = _union[_KINDS]


def _lookup(given: _Call) -> Any:
    """Makes `embedding_lookup_sparse` of fused operations; NotImplemented if TensorFlow has to make it."""
    table, ids, weights = table_of(given["params"]), given["sp_ids"], given["sp_weights"]
    combiner = given["combiner"] or "mean"
    if table is None or combiner not in fused.COMBINERS or not _fit(ids, weights):
        return NotImplemented
    with tf.name_scope(given["name"] or "embedding_lookup_sparse"):
        return lookup_fused(table, ids, weights, combiner, given["max_norm"])


def _safe_lookup(given: _Call) -> Any:
    """Makes `safe_embedding_lookup_sparse` of fused operations; NotImplemented if TensorFlow has to make it."""
    table, ids, weights = table_of(given["embedding_weights"]), given["sparse_ids"], given["sparse_weights"]
    combiner = given["combiner"] or "mean"
    if table is None or combiner not in fused.COMBINERS or not _fit(ids, weights) or ids.shape.rank is None:
        return NotImplemented
    with tf.name_scope(given["name"] or "embedding_lookup"):
        return lookup_valid(table, ids, weights, combiner, given["max_norm"], given["default_id"])


def _fit(ids: Any, weights: Any) -> bool:
    """Returns whether ids and weights can be combined; if not, TensorFlow's function raises its own error."""
    are_sparse = isinstance(ids, tf.SparseTensor) and (weights is None or isinstance(weights, tf.SparseTensor))
    return are_sparse or are_ragged_matrices(ids, weights)


def _register(api: Callable[..., Any], make: Callable[[_Call], Any], **types: Any) -> None:
    """Makes TensorFlow call `make` for calls of `api` whose arguments have these types."""
    signature = inspect.signature(api)
    own = tf_decorator.unwrap(api)[1]

    def target(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        made = make(call.arguments)
        return own(*args, **kwargs) if made is NotImplemented else made

    # TensorFlow compares it with the function's signature.
    target.__signature__ = signature  # type: ignore[attr-defined]
    tf.experimental.dispatch_for_api(api, types)(target)


def intercept_pooling(interception: Interception) -> None:
    """Fuses what reaches TensorFlow's own implementation: ragged ids of the functions of `tf.compat.v1`."""
    interception.replace(symbols.POOLING, _wrap_pooling)


def _wrap_pooling(pool: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(pool)

    @functools.wraps(pool)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        table, weights = table_of(given["params"]), given["sp_weights"]
        if table is None:
            return pool(*args, **kwargs)
        values = None if given["ignore_weights"] else weights.values
        ids = fused.Pooled(given["ids"], fused.splits_of_examples(given["segment_ids"], table), values)
        ids = fused.checked(ids, table) if table.has_route else ids
        return combine(table, ids, given["combiner"], given["max_norm"])

    return wrapped


for _class in TABLES:
    if not issubclass(_class, composite_tensor.CompositeTensor):  # TensorFlow has registered these
        dispatch.register_dispatchable_type(_class)
_register(tf.nn.embedding_lookup_sparse, _lookup, params=_TABLES_ARGUMENT)
_register(tf.nn.safe_embedding_lookup_sparse, _safe_lookup, embedding_weights=_TABLES_ARGUMENT)
# For ragged ids, TensorFlow has targets of its own at these two; a call must not match several.
_register(tf.compat.v1.nn.embedding_lookup_sparse, _lookup, params=_TABLES_ARGUMENT, sp_ids=tf.SparseTensor)
_register(
    tf.compat.v1.nn.safe_embedding_lookup_sparse,
    _safe_lookup,
    embedding_weights=_TABLES_ARGUMENT,
    sparse_ids=tf.SparseTensor,
)
