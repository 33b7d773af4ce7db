"""The steps of a lookup in a sharded table that communicate, and what moves whole tables, as functions on tensors.

Letters: R workers, N ids of a lookup on this worker, M rows that this worker serves to all, L rows of this worker's
shard, D the dimensions of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from lockstep._src import library, wire
from lockstep._src.collectives import Priority
from lockstep._src.context import context
from lockstep._src.training import row_weights


class Route(NamedTuple):
    """Where the ids of a lookup went.

    Attributes:
      local_rows: [M] int64, rows of this worker's shard that the workers ask for, in rank order; keys of a dynamic
        table.
      inverse: of the ids' shape, int32; which of the distinct ids, in order of their owners, each id is.
      send_splits: [R] int64, how many distinct ids went to each worker.
      recv_splits: [R] int64, how many came from each; M together.
    """

    local_rows: tf.Tensor
    inverse: tf.Tensor
    send_splits: tf.Tensor
    recv_splits: tf.Tensor


def route(ids: tf.Tensor, rows: int, table: str) -> Route:
    """Sends each distinct id to the worker that owns its row.

    Args:
      ids: int32 or int64 of any shape; each in [0, rows), else the step fails with InvalidArgumentError on all workers.
      rows: of the whole table.
      table: its name, for messages.
    """
    group = context.options.group_lookups
    outputs = library.ops.lockstep_route([ids], N=1, num_rows=[rows], tables=[table], lockstep_group=group)
    return Route(*(output for (output,) in _in_any_order(outputs)))


def route_strings(ids: tf.Tensor, table: str) -> tuple[Route, tf.Tensor]:
    """Sends each distinct string to the worker that owns it, by a hash; strings of one hash stay different.

    Args:
      ids: strings of any shape.
      table: its name, for messages.

    Returns:
      The route, whose `local_rows` are strings, and how often the worker that asks looked each of these up, [M] int64.
    """
    group = context.options.group_lookups
    outputs = library.ops.lockstep_route_strings([ids], tables=[table], lockstep_group=group)
    served, times, *places = (output for (output,) in _in_any_order(outputs))
    return Route(served, *places), times


def combine(rows: tf.Tensor, route: Route) -> tf.Tensor:
    """Sends rows [M, D...] back the way the ids came, and puts one at the place of each id: [ids..., D...]."""
    return wire.through(
        rows,
        lambda rows: _combine([rows], [route.inverse], [route.send_splits], [route.recv_splits])[0],
    )


def _combine(rows: list[Any], *route: list[tf.Tensor]) -> list[tf.Tensor]:
    return _in_any_order(library.ops.lockstep_combine(rows, *route, lockstep_group=context.options.group_lookups))


def _combine_gradient(grads: list[tf.Tensor], *route: list[tf.Tensor]) -> list[tf.Tensor]:
    return _in_any_order(
        library.ops.lockstep_combine_gradient(
            grads, *route, lockstep_priority=Priority.TABLE, lockstep_group=context.options.group_lookups
        )
    )


def _in_any_order(outputs: Any) -> Any:
    """What a step gave, whose operation may run before and beside all that its inputs don't come from.

    A `tf.function` makes operations with a state run in the order of the program. These have none but that of the job,
    which gets its order from the graph of the run; one behind the other they would not be grouped.
    """
    operations = getattr(tf.compat.v1.get_default_graph(), "experimental_acd_manager", None)
    if operations is not None:
        operations.run_independently(tf.nest.flatten(outputs)[0].op)
    return outputs


def check_ids(ids: tf.Tensor, rows: int, table: str) -> tf.Tensor:
    """Hands `ids` on; InvalidArgumentError for one out of [0, rows). What a job of one worker has for a route."""
    return library.ops.lockstep_check_ids(ids, num_rows=rows, table=table)


def relayout(tensor: tf.Tensor, rows: int, *, to_contiguous: bool, name: str | None = None) -> tf.Tensor:
    """Moves the rows of a table between the placement of training and that of checkpoints. All workers take part.

    In training worker r of R holds rows r, r + R, r + 2R, ...; in a checkpoint worker r holds a contiguous range, and
    the first `rows mod R` workers hold one row more. A worker has as many rows in either.

    Args:
      tensor: [L, ...], this worker's rows.
      rows: of the whole table.
      to_contiguous: from the placement of training to that of checkpoints, or back.
      name: of the operation; the same on all workers.

    Returns:
      [L, ...], this worker's rows in the other placement.
    """
    return library.ops.lockstep_relayout(tensor, num_rows=rows, to_contiguous=to_contiguous, name=name)


def gather_table(tensor: tf.Tensor, rows: int) -> tf.Tensor:
    """The whole table, [rows, ...] by id, out of each worker's rows [L, ...]. All workers take part."""
    return library.ops.lockstep_gather_table(tensor, num_rows=rows)


def _exchange_gradient(grad: Any, exchange: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """A gradient of rows, weighed by this worker's rows of the batch, summed over workers in the type of the wire."""
    weighted = row_weights.weighted(tf.convert_to_tensor(grad))
    return tf.cast(exchange(wire.to_wire(weighted, wire.gradient_dtype())), weighted.dtype)


def _mean(summed: tf.Tensor) -> tf.Tensor:
    """The mean over workers of what was summed over them, or the sum where the option `embedding_gradient` says so.

    It is taken here and not where an optimizer is given the gradient: there it could not be told whether a gradient
    that was accumulated, scaled or passed through a branch has had its mean taken.
    """
    if context.options.embedding_gradient == "sum":
        return summed
    return summed * tf.cast(1.0 / context.world_size, summed.dtype)


def _lookups(op: tf.Operation) -> Iterator[tuple[tf.Tensor, ...]]:
    """For each lookup of an op with lists, its values, inverse, send_splits and recv_splits."""
    count = op.get_attr("N")
    return zip(*(op.inputs[i : i + count] for i in range(0, 4 * count, count)), strict=True)


@tf.RegisterGradient("LockstepCombine")
def _gradient_of_combine(op: tf.Operation, *grads: Any) -> list[tf.Tensor | None]:
    summed = []
    for (_, inverse, *splits), grad in zip(_lookups(op), grads, strict=True):
        values = grad
        if isinstance(grad, tf.IndexedSlices):
            # A gather followed the lookup. Its slices are gradients of the ids that it picked.
            inverse = tf.gather(inverse, grad.indices)
            values = grad.values
        route = [[part] for part in (inverse, *splits)]
        exchanged = _exchange_gradient(values, lambda values, route=route: _combine_gradient([values], *route)[0])
        summed.append(_mean(exchanged))
    return [*summed, *[None] * (3 * len(grads))]


@tf.RegisterGradient("LockstepCombineGradient")
def _gradient_of_combine_gradient(op: tf.Operation, *grads: tf.Tensor) -> list[tf.Tensor | None]:
    # The sum per row is linear: its gradient hands each id that of its row.
    given = [
        _combine([tf.convert_to_tensor(grad)], *([part] for part in route))[0]
        for (_, *route), grad in zip(_lookups(op), grads, strict=True)
    ]
    return [*given, *[None] * (3 * len(grads))]


@tf.RegisterGradient("LockstepGatherTable")
def _gather_table_gradient(op: tf.Operation, grad: Any) -> tf.Tensor:
    summed = _exchange_gradient(
        grad,
        lambda grad: library.ops.lockstep_reduce_table(
            grad, num_rows=op.get_attr("num_rows"), lockstep_priority=Priority.TABLE
        ),
    )
    summed.set_shape(op.inputs[0].shape)
    return _mean(summed)


@tf.RegisterGradient("LockstepReduceTable")
def _reduce_table_gradient(op: tf.Operation, grad: Any) -> tf.Tensor:
    return gather_table(tf.convert_to_tensor(grad), op.get_attr("num_rows"))


@tf.RegisterGradient("LockstepRelayout")
def _relayout_gradient(op: tf.Operation, grad: Any) -> tf.Tensor:
    return relayout(tf.convert_to_tensor(grad), op.get_attr("num_rows"), to_contiguous=not op.get_attr("to_contiguous"))


for _name in ("LockstepRoute", "LockstepRouteStrings", "LockstepCheckIds"):
    tf.no_gradient(_name)
