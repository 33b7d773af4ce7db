"""The steps of a lookup in a sharded table that communicate, and what moves whole tables, as functions on tensors.

Letters: R workers, N ids of a lookup on this worker, M rows that this worker serves to all, L rows of this worker's
shard, D the dimensions of a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from lockstep._src.collectives import wire
from lockstep._src.collectives.ordered import Priority
from lockstep._src.engine import library
from lockstep._src.engine.context import context
from lockstep._src.graph import row_weights

# In place of a number of rows: a dynamic table, in which any int64 is a key; and one whose keys travel with how often
# they were looked up (core/sharding/lookup.h).
ANY_KEY, COUNTED_KEYS = -1, -2


class Stage(NamedTuple):
    """Where ids went, and the way back.

    Attributes:
      inverse: of the ids' shape, int32; which of the distinct ids, in order of where they went, each id is.
      send_splits: [R] int64, how many distinct ids went to each worker.
      recv_splits: [R] int64, how many came from each.
      name: "only", or where the job's hosts have several workers "host", to those of this host that carry to the
        owners, and "owner", from there to the owners, so that what a host's workers look up goes to another host once.
    """

    inverse: tf.Tensor
    send_splits: tf.Tensor
    recv_splits: tf.Tensor
    name: str


class Route(NamedTuple):
    """Where the ids of a lookup went.

    Attributes:
      local_rows: [M] int64, rows of this worker's shard that the workers ask for, in rank order; keys of a dynamic
        table.
      times: [M] int64, of counted keys how often each was looked up; else None.
      stages: on the way there.
    """

    local_rows: tf.Tensor
    times: tf.Tensor | None
    stages: tuple[Stage, ...]

    def with_places(self, place: Callable[[tf.Tensor], tf.Tensor]) -> Route:
        """The route of other ids, whose places among the distinct ones are `place` of those of this one's."""
        first, *others = self.stages
        return self._replace(stages=(first._replace(inverse=place(first.inverse)), *others))


# Workers on a host, from which on two stages cost less than one: docs/sharding.md has the figures.
_SHARED_FROM = 4


def _in_two_stages() -> bool:
    """Whether the workers of a host look up together. No matter of the moment, as sums would be others then."""
    hosts, workers = library.num_hosts(), library.size()
    chosen = context.options.use_hierarchical_embedding_lookup
    if chosen is None:
        chosen = workers >= _SHARED_FROM * hosts
    return chosen and 1 < hosts < workers


def _stages() -> tuple[str, ...]:
    """Names of the stages of a lookup, in the order of the way there."""
    return ("host", "owner") if _in_two_stages() else ("only",)


def route(ids: tf.Tensor, rows: int, table: str) -> Route:
    """Sends each distinct id to the worker that owns its row.

    Args:
      ids: int32 or int64 of any shape; each in [0, rows), else the step fails with InvalidArgumentError on all workers.
      rows: of the whole table, or ANY_KEY, or COUNTED_KEYS.
      table: its name, for messages.
    """
    times, made = None, []
    # Each stage sends what came of the one before.
    for stage in _stages():
        outputs = library.ops.lockstep_route(
            [ids],
            [] if times is None else [times],
            N=1,
            num_rows=[rows],
            tables=[table],
            stage=stage,
            lockstep_group=context.options.group_lookups,
        )
        served, *places = (output for (output,) in _in_any_order(outputs))
        ids, times = tf.unstack(served, num=2, axis=1) if rows == COUNTED_KEYS else (served, None)
        made.append(Stage(*places, stage))
    return Route(ids, times, tuple(made))


def route_strings(ids: tf.Tensor, table: str) -> Route:
    """Sends each distinct string to the worker that owns it, by a hash; strings of one hash stay different.

    Args:
      ids: strings of any shape.
      table: its name, for messages.

    Returns:
      The route, whose `local_rows` are strings, and which has `times`.
    """
    times, made = None, []
    for stage in _stages():
        outputs = library.ops.lockstep_route_strings(
            [ids],
            [] if times is None else [times],
            tables=[table],
            stage=stage,
            lockstep_group=context.options.group_lookups,
        )
        ids, times, *places = (output for (output,) in _in_any_order(outputs))
        made.append(Stage(*places, stage))
    return Route(ids, times, tuple(made))


def combine(rows: tf.Tensor, route: Route) -> tf.Tensor:
    """Sends rows [M, D...] back the way the ids came, and puts one at the place of each id: [ids..., D...]."""

    def back(rows: tf.Tensor) -> tf.Tensor:
        for stage in reversed(route.stages):
            rows = _combine(rows, stage)
        return rows

    return wire.through(rows, back)


def _combine(rows: tf.Tensor, stage: Stage) -> tf.Tensor:
    (combined,) = _in_any_order(
        library.ops.lockstep_combine(
            [rows],
            [stage.inverse],
            [stage.send_splits],
            [stage.recv_splits],
            stage=stage.name,
            lockstep_group=context.options.group_lookups,
        )
    )
    return combined


def _combine_gradient(grad: tf.Tensor, stage: Stage) -> tf.Tensor:
    (summed,) = _in_any_order(
        library.ops.lockstep_combine_gradient(
            [grad],
            [stage.inverse],
            [stage.send_splits],
            [stage.recv_splits],
            stage=stage.name,
            lockstep_priority=Priority.TABLE,
            lockstep_group=context.options.group_lookups,
        )
    )
    return summed


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


def _exchange_gradient(grad: tf.Tensor, exchange: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """A gradient of rows, summed over workers in the type of the wire."""
    return tf.cast(exchange(wire.to_wire(grad, wire.gradient_dtype())), grad.dtype)


def _weighted(grad: Any) -> tf.Tensor:
    """A gradient weighed by this worker's rows of the batch."""
    return row_weights.weighted(tf.convert_to_tensor(grad))


def _mean(summed: tf.Tensor) -> tf.Tensor:
    """The mean over workers of what was summed over them, or the sum where the option `embedding_gradient` says so.

    It is taken here and not where an optimizer is given the gradient: there it could not be told whether a gradient
    that was accumulated, scaled or passed through a branch has had its mean taken.
    """
    if context.options.embedding_gradient == "sum":
        return summed
    return summed * tf.cast(1.0 / context.world_size, summed.dtype)


def _stages_of(op: tf.Operation) -> Iterator[Stage]:
    """For each lookup of an op with lists, where its ids went; the first inputs are their values."""
    count, name = op.get_attr("N"), tf.compat.as_str(op.get_attr("stage"))
    for parts in zip(*(op.inputs[i : i + count] for i in range(count, 4 * count, count)), strict=True):
        yield Stage(*parts, name)


@tf.RegisterGradient("LockstepCombine")
def _gradient_of_combine(op: tf.Operation, *grads: Any) -> list[tf.Tensor | None]:
    summed = []
    for stage, grad in zip(_stages_of(op), grads, strict=True):
        values = grad
        if isinstance(grad, tf.IndexedSlices):
            # A gather followed the lookup. Its slices are gradients of the ids that it picked.
            stage = stage._replace(inverse=tf.gather(stage.inverse, grad.indices))
            values = grad.values
        # On its way a gradient is weighed where it begins, and its mean taken where it ends.
        values = tf.convert_to_tensor(values) if stage.name == "owner" else _weighted(values)
        exchanged = _exchange_gradient(values, functools.partial(_combine_gradient, stage=stage))
        summed.append(exchanged if stage.name == "host" else _mean(exchanged))
    return [*summed, *[None] * (3 * len(grads))]


@tf.RegisterGradient("LockstepCombineGradient")
def _gradient_of_combine_gradient(op: tf.Operation, *grads: tf.Tensor) -> list[tf.Tensor | None]:
    # The sum per row is linear: its gradient hands each id that of its row.
    given = [_combine(tf.convert_to_tensor(grad), stage) for stage, grad in zip(_stages_of(op), grads, strict=True)]
    return [*given, *[None] * (3 * len(grads))]


@tf.RegisterGradient("LockstepGatherTable")
def _gather_table_gradient(op: tf.Operation, grad: Any) -> tf.Tensor:
    summed = _exchange_gradient(
        _weighted(grad),
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
