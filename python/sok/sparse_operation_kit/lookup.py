"""Lookups in tables on all ranks."""

from typing import Any

import tensorflow as tf

from lockstep._src.compat.sok import lookups

__all__ = ["all2all_dense_embedding", "lookup_sparse", "sparse_read_and_evict"]


def lookup_sparse(
    params: Any, sp_ids: Any, sp_weights: Any = None, combiners: Any = None, use_low_frequency_filter: bool = False
) -> Any:
    """Looks ids up in one or several tables, and combines the rows of each example. All ranks call it together.

    Args:
      params: a sok.Variable or sok.DynamicVariable, or a list of T of any kinds; also tables of this library's scopes.
      sp_ids: tf.SparseTensor or tf.RaggedTensor [examples, ids], or a list of T; the examples are this rank's. Ids of a
        sok.Variable are in [0, rows).
      sp_weights: weights of the ids, of the same structure; None: all weights are 1.
      combiners: "sum" or "mean", or a list of T; None: "mean". With weights, "mean" divides by the sum of the weights.
      use_low_frequency_filter: whether a key that a dynamic variable does not have is added only with the
        probability `filter_ratio` of the variable; otherwise its row is zeros.

    Returns:
      [examples, D], zeros for an example without ids; a list of them if `sp_ids` is a list. The gradient of a table is
      the sum over all ranks' losses: tf.IndexedSlices of the rank's rows, for a dynamic variable of its keys.

    Raises:
      ValueError: the lists have different lengths, or a combiner does not exist.
      TypeError: a table or ids of another type.
      NotImplementedError: the filter for a variable of `var_type="hbm"`.
      tf.errors.InvalidArgumentError: an id is out of range, on all ranks.
    """
    return lookups.lookup_sparse(params, sp_ids, sp_weights, combiners, use_low_frequency_filter)


def all2all_dense_embedding(param: Any, indices: Any) -> tf.Tensor:
    """Looks up a row for each id. All ranks call it together.

    Args:
      param: a table, as in `lookup_sparse`.
      indices: integers of any shape.

    Returns:
      [indices..., D], with gradients as in `lookup_sparse`.

    Raises:
      TypeError: a table or ids of another type.
      tf.errors.InvalidArgumentError: an id is out of range, on all ranks.
    """
    return lookups.all2all_dense_embedding(param, indices)


def sparse_read_and_evict(var: Any, indices: Any, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Reads rows of this rank by key, adds new keys, and evicts keys beyond `max_capacity`.

    The keys of this call stay, so a table may exceed its capacity if a call has more keys. Other keys go, the longest
    unseen first, also if they were read in this step; then their gradient of this step is dropped.

    Args:
      var: sok.DynamicVariable of `var_type="hybrid"`.
      indices: integers of any shape.
      name: not used.

    Returns:
      (rows [indices..., D], evicted keys [K], their rows [K, D]).

    Raises:
      TypeError: another variable.
    """
    return lookups.sparse_read_and_evict(var, indices)
