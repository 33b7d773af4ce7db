"""The fused operations of a pooled lookup, as functions on tensors (core/embedding/pooling.h).

    ids ─► valid_ids ─► table.distinct_rows ─► rows of distinct ids, places ─► pool ─► a row for each example

`valid_ids` is a step of `tf.nn.safe_embedding_lookup_sparse` only. Other lookups have `checked` at its place if the
table has a route. A step before the route does not raise an error in this worker's data, because the peers would wait
for this worker in the exchange. The error goes along as `Examples.problem`, and the route raises it on all workers.

Letters: N ids of a lookup on this worker, U distinct ones, B examples, D the dimensions of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from lockstep._src.engine import library
from lockstep._src.engine.context import context
from lockstep._src.engine.host_memory import made_on_host
from lockstep._src.tables.sharded.lookup_steps import DistinctRows

COMBINERS = ("sum", "mean", "sqrtn")


class Examples(NamedTuple):
    """The examples of a lookup.

    Attributes:
      splits: [B + 1] int64, where the ids of each example begin.
      problem: the text of an error that this worker has found in them; "" or None: none. It is raised by the route of
        the lookup, and is None if the table has no route.
    """

    splits: tf.Tensor
    problem: tf.Tensor | None = None


class Pooled(NamedTuple):
    """The ids of a lookup that are combined.

    Attributes:
      ids: [N], integers or strings.
      examples: their examples.
      weights: [N], of a floating-point type, or None.
    """

    ids: tf.Tensor
    examples: Examples
    weights: tf.Tensor | None


def splits_of(ids: tf.SparseTensor | tf.RaggedTensor, all_examples: bool, table: Any) -> Examples:
    """Returns where the ids of each example begin.

    Args:
      ids: [B, ...]; an example is an index of the first dimension.
      all_examples: False: B ends with the last example that has ids, as in `tf.nn.embedding_lookup_sparse`.
      table: the table in which they are looked up, with `logical_name` and `has_route`.
    """
    if isinstance(ids, tf.SparseTensor):
        return _splits(ids.indices, [ids.dense_shape[0]] if all_examples else [], table)
    splits = tf.cast(ids.row_splits, tf.int64)
    return Examples(splits if all_examples else splits[: tf.searchsorted(splits, splits[-1:])[0] + 1])


def splits_of_examples(examples: tf.Tensor, table: Any) -> Examples:
    """Returns where the ids of each example begin, from the example of each id, [N]; up to the last example."""
    return _splits(tf.expand_dims(tf.cast(examples, tf.int64), -1), [], table)


def _splits(indices: tf.Tensor, batch: list[tf.Tensor], table: Any) -> Examples:
    splits, problem = library.ops.lockstep_splits(indices, batch, table=table.logical_name, defers=table.has_route)
    return Examples(splits, problem if table.has_route else None)


def valid_ids(given: Pooled, table: Any, *, positive_weights: bool, fill: bool) -> Pooled:
    """Returns `given` without ids below 0; nothing is copied if all ids are valid.

    Args:
      given: the ids.
      table: see `splits_of`.
      positive_weights: whether ids without a positive weight are dropped, too.
      fill: whether an id 0, which belongs to no example, follows the others if an example has no valid id.
    """
    return _valid_ids(given, table, positive_weights=positive_weights, fill=fill, drops=True)


def checked(given: Pooled, table: Any) -> Pooled:
    """Returns `given`; `problem` says whether ids, splits and weights fit together. See `splits_of`."""
    return _valid_ids(given, table, positive_weights=False, fill=False, drops=False)


def _valid_ids(given: Pooled, table: Any, **options: bool) -> Pooled:
    ids, (splits, problem), weights = given
    if ids.dtype not in (tf.int32, tf.int64, tf.string):
        ids = tf.cast(ids, tf.int64)
    if weights is not None and weights.dtype != tf.float64:
        weights = tf.cast(weights, tf.float32)
    ids, splits, problem, kept = library.ops.lockstep_valid_ids(
        ids,
        splits,
        [] if weights is None else [weights],
        [] if problem is None else [problem],
        table=table.logical_name,
        defers=table.has_route,
        **options,
    )
    return Pooled(ids, Examples(splits, problem if table.has_route else None), kept[0] if kept else None)


def pool(
    found: DistinctRows,
    splits: tf.Tensor,
    weights: tf.Tensor | None,
    combiner: str,
    max_norm: float | None = None,
    table: str = "",
) -> tf.Tensor:
    """Returns the combined row of each example, [B, D...]; zeros for an example without ids.

    Args:
      found: the rows of a lookup's distinct ids; floating point.
      splits: [B + 1] int64, where the ids of each example begin.
      weights: [N], of a floating-point type; None: all are 1.
      combiner: 'sum', 'mean' or 'sqrtn', as `tf.nn.embedding_lookup_sparse` defines them.
      max_norm: rows are clipped to this norm before they are combined; None: they aren't.
      table: the table's name, for messages.

    Running it raises InvalidArgumentError if splits, weights and ids don't fit together.
    """
    rows = found.rows
    if max_norm is not None:
        rows = tf.clip_by_norm(rows, max_norm, axes=list(range(1, rows.shape.rank)))
    if weights is not None:
        weights = tf.cast(weights, _weights_dtype(rows.dtype))
    return _pool(rows, found.places, splits, weights, combiner, table)


def _weights_dtype(rows: tf.DType) -> tf.DType:
    return tf.float64 if rows == tf.float64 else tf.float32


def _pool(
    rows: tf.Tensor, places: tf.Tensor, splits: tf.Tensor, weights: tf.Tensor | None, combiner: str, table: str
) -> tf.Tensor:
    return _of_one_lookup(library.ops.lockstep_pool, [rows, places, splits], weights, combiner, table)


def _row_gradients(
    grad: tf.Tensor,
    row_shape: tf.Tensor,
    places: tf.Tensor,
    splits: tf.Tensor,
    weights: tf.Tensor | None,
    combiner: str,
    table: str,
) -> tf.Tensor:
    inputs = [grad, row_shape, places, splits]
    return _of_one_lookup(library.ops.lockstep_pool_gradient, inputs, weights, combiner, table)


def _of_one_lookup(
    operation: Callable[..., Any], inputs: list[tf.Tensor], weights: tf.Tensor | None, combiner: str, table: str
) -> tf.Tensor:
    """Returns the output of an operation with lists, for one lookup."""
    (output,) = operation(
        *([one] for one in inputs),
        [] if weights is None else [weights],
        combiners=[combiner],
        weighted=[weights is not None],
        tables=[table],
        lockstep_group=context.options.group_lookups,
    )
    return output


def _lookups_of(op: tf.Operation, values: int) -> Iterator[tuple[Any, ...]]:
    """Yields for each lookup of an op with lists: its values, places, splits, weights (or None), combiner and table.

    Args:
      op: an op whose inputs are lists.
      values: how many lists come before the places.
    """
    count = op.get_attr("N")
    lists = [op.inputs[i * count : (i + 1) * count] for i in range(values + 2)]
    weights = iter(op.inputs[(values + 2) * count :])
    attributes = [op.get_attr(name) for name in ("weighted", "combiners", "tables")]
    for parts, weighted, *names in zip(zip(*lists, strict=True), *attributes, strict=True):
        yield *parts, next(weights) if weighted else None, *map(tf.compat.as_str, names)


@tf.RegisterGradient("LockstepPool")
@made_on_host
def _gradient_of_pool(op: tf.Operation, *grads: Any) -> list[tf.Tensor | None]:
    of_rows, of_weights = [], []
    lookups = zip(_lookups_of(op, 1), op.outputs, grads, strict=True)
    for (rows, places, splits, weights, combiner, table), pooled, grad in lookups:
        grad = tf.convert_to_tensor(grad)
        shape = tf.shape(rows, out_type=tf.int64)
        of_rows.append(_row_gradients(grad, shape, places, splits, weights, combiner, table))
        if weights is not None:
            of_weights.append(_weight_gradients(grad, rows, pooled, places, splits, weights, combiner))
    return [*of_rows, *[None] * (2 * len(grads)), *of_weights]


@tf.RegisterGradient("LockstepPoolGradient")
@made_on_host
def _gradient_of_pool_gradient(op: tf.Operation, *grads: Any) -> list[tf.Tensor | None]:
    # The inner product of row gradients with `given` equals the inner product of the examples' gradients with the
    # pooled `given`.
    of_gradients, of_weights = [], []
    for (grad, _, places, splits, weights, combiner, table), given in zip(_lookups_of(op, 2), grads, strict=True):
        given = tf.convert_to_tensor(given)
        pooled = _pool(given, places, splits, weights, combiner, table)
        of_gradients.append(pooled)
        if weights is not None:
            of_weights.append(_weight_gradients(grad, given, pooled, places, splits, weights, combiner))
    return [*of_gradients, *[None] * (3 * len(grads)), *of_weights]


def _weight_gradients(
    grad: tf.Tensor,
    rows: tf.Tensor,
    pooled: tf.Tensor,
    places: tf.Tensor,
    splits: tf.Tensor,
    weights: tf.Tensor,
    combiner: str,
) -> tf.Tensor:
    """Returns the gradients of weights, [N], made of TensorFlow's operations: few programs train weights."""

    def inner(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        product = tf.cast(one, weights.dtype) * tf.cast(other, weights.dtype)
        return tf.reduce_sum(tf.reshape(product, [tf.shape(product)[0], -1]), 1)

    lengths = splits[1:] - splits[:-1]
    example = tf.repeat(tf.range(tf.size(lengths)), lengths)
    of_rows = inner(tf.gather(grad, example), tf.gather(rows, places))
    if combiner == "sum":
        return of_rows
    of_pooled = tf.gather(inner(grad, pooled), example)
    count = tf.size(lengths)
    if combiner == "mean":
        total = tf.gather(tf.math.unsorted_segment_sum(weights, example, count), example)
        return tf.math.divide_no_nan(of_rows - of_pooled, total)
    squares = tf.gather(tf.math.unsorted_segment_sum(weights**2, example, count), example)
    return tf.math.divide_no_nan(of_rows, tf.sqrt(squares)) - tf.math.divide_no_nan(weights * of_pooled, squares)


@tf.RegisterGradient("LockstepValidIds")
@made_on_host
def _gradient_of_valid_ids(op: tf.Operation, *grads: Any) -> list[tf.Tensor | None]:
    if len(grads) < 4:
        return [None] * len(op.inputs)
    ids, _, weights, *problems = op.inputs
    of_weights = tf.convert_to_tensor(grads[3])
    if not op.get_attr("drops"):
        return [None, None, of_weights, *[None] * len(problems)]
    is_valid = tf.ones(tf.shape(ids), tf.bool) if ids.dtype == tf.string else ids >= 0
    if op.get_attr("positive_weights"):
        is_valid &= weights > 0
    grad = tf.scatter_nd(tf.where(is_valid), of_weights, tf.shape(weights, out_type=tf.int64))
    return [None, None, grad, *[None] * len(problems)]


tf.no_gradient("LockstepSplits")
