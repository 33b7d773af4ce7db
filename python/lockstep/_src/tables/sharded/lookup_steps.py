"""The communicating steps of a lookup in a sharded table, and moves of whole tables, as functions on tensors.

Letters: R workers, N ids of a lookup on this worker, M rows that this worker looks up for all workers, L rows of this
worker's shard, D the dimensions of a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from lockstep._src.collectives import named_job, wire
from lockstep._src.collectives.ordered import Priority
from lockstep._src.engine import apart, library
from lockstep._src.engine.context import context
from lockstep._src.engine.host_memory import made_on_host
from lockstep._src.graph import gradient_scale, row_weights
from lockstep._src.tables.placement.shard import Shard
from lockstep._src.tables.sharded.row_reads import read_rows


class Stage(NamedTuple):
    """One stage of a route: where ids were sent, and how the rows come back.

    Attributes:
      inverse: of the ids' shape, int32: the place of each id among the distinct ids, which are sorted by target worker.
      send_splits: [R] int64, how many distinct ids were sent to each worker.
      recv_splits: [R] int64, how many ids came from each worker.
      name: "only" if there is one stage, "local" if nothing is sent (there are no splits then). If the job's hosts have
        several workers there are two: "host" sends ids to workers of this host, and "owner" from there to the owners.
        So each id of a host is sent to another host once.
    """

    inverse: tf.Tensor
    send_splits: tf.Tensor | None
    recv_splits: tf.Tensor | None
    name: str


class Route(NamedTuple):
    """The way of a lookup's ids to the owners of their rows.

    Attributes:
      local_rows: [M] int64, rows of this worker's shard that the workers request, in rank order; for a dynamic table
        keys.
      times: [M] int64, for counted keys how often each was looked up; otherwise None.
      stages: the stages, in the order in which ids are sent.
    """

    local_rows: tf.Tensor
    times: tf.Tensor | None
    stages: tuple[Stage, ...]

    def with_places(self, place: Callable[[tf.Tensor], tf.Tensor]) -> Route:
        """Returns a route of other ids; `place` maps the places of these ids among distinct ones to theirs."""
        first, *others = self.stages
        return self._replace(stages=(first._replace(inverse=place(first.inverse)), *others))


class DistinctRows(NamedTuple):
    """The rows that a lookup gets, once for each distinct id.

    Attributes:
      rows: [U, D...].
      places: of the ids' shape, int32: the place of each id's row.
    """

    rows: tf.Tensor
    places: tf.Tensor


# How the gradients of a lookup's rows are summed over the workers: the attribute `gradients` of LockstepCombine.
_BY_OPTION, _SUM = "option", "sum"

# With at least this many workers per host, two stages cost less than one; docs/sharding.md has the measurements.
_SHARED_FROM = 4


def _in_two_stages() -> bool:
    """Returns whether lookups have two stages; this must not change within a job, as it changes rounding."""
    hosts, workers = library.num_hosts(), library.size()
    if hosts is None or workers is None:
        return False
    chosen = context.options.use_hierarchical_embedding_lookup
    if chosen is None:
        chosen = workers >= _SHARED_FROM * hosts
    return chosen and 1 < hosts < workers


def _stages() -> tuple[str, ...]:
    """Returns the names of a lookup's stages, in the order in which ids are sent."""
    return ("host", "owner") if _in_two_stages() else ("only",)


def route(ids: tf.Tensor, shard: Shard, table: str, problem: tf.Tensor | None = None) -> Route:
    """Sends each distinct id to the worker that owns its row.

    Args:
      ids: int32 or int64 of any shape, each in [0, rows). Otherwise the step fails with InvalidArgumentError on all
        workers. So it does if the workers place the table differently.
      shard: says where the rows are.
      table: the table's name, for messages.
      problem: the text of an error that this worker has found in the lookup; "" or None: none. With an error, the step
        fails with InvalidArgumentError on all workers.
    """
    return _route(ids, "rows", [shard], [], table, problem)


def route_keys(keys: tf.Tensor, table: str, *, counts: bool, key_owner: int, problem: tf.Tensor | None = None) -> Route:
    """Sends each distinct key of a dynamic table to the worker that owns it.

    Args:
      keys: int64 of any shape; any number is a key.
      table: the table's name, for messages.
      counts: whether to send along how often each key was looked up: the route then has `times`.
      key_owner: says which worker owns a key: -2: by its hash; -1: by its remainder; r >= 0: worker r.
      problem: see `route`.
    """
    return _route(keys, "counted_keys" if counts else "keys", [], [key_owner], table, problem)


def _route(
    ids: tf.Tensor,
    ids_are: str,
    shards: list[Shard],
    key_owners: list[int],
    table: str,
    problem: tf.Tensor | None,
) -> Route:
    """Makes the operations of a route; `ids_are` is described in `tf/lookup/lookup_ops.cc`.

    `shards` has one element if the ids are rows, else none; `key_owners` has one if they are keys.
    """
    times, made = None, []
    # Each stage sends the results of the previous one.
    for stage in _stages():
        outputs = library.ops.lockstep_route(
            [ids],
            [] if times is None else [times],
            [] if problem is None else [problem],
            N=1,
            ids_are=[ids_are],
            num_rows=[shard.rows for shard in shards],
            blocks=[shard.block for shard in shards],
            first_ranks=[shard.first for shard in shards],
            key_owners=key_owners,
            tables=[table],
            stage=stage,
            lockstep_group=context.options.group_lookups,
        )
        problem = None  # the first stage has declined
        served, inverse, send_splits, recv_splits = (output for (output,) in _in_any_order(outputs))
        ids, times = tf.unstack(served, num=2, axis=1) if ids_are == "counted_keys" else (served, None)
        made.append(Stage(inverse, send_splits, recv_splits, stage))
    return Route(ids, times, tuple(made))


def route_strings(ids: tf.Tensor, table: str, *, key_owner: int, problem: tf.Tensor | None = None) -> Route:
    """Sends each distinct string to the worker that owns it; different strings with one hash stay different.

    Args:
      ids: strings of any shape.
      table: the table's name, for messages.
      key_owner: see `route_keys`; strings have no remainder.
      problem: see `route`.

    Returns:
      The route, whose `local_rows` are strings; it has `times`.
    """
    times, made = None, []
    for stage in _stages():
        outputs = library.ops.lockstep_route_strings(
            [ids],
            [] if times is None else [times],
            [] if problem is None else [problem],
            key_owners=[key_owner],
            tables=[table],
            stage=stage,
            lockstep_group=context.options.group_lookups,
        )
        problem = None
        ids, times, inverse, send_splits, recv_splits = (output for (output,) in _in_any_order(outputs))
        made.append(Stage(inverse, send_splits, recv_splits, stage))
    return Route(ids, times, tuple(made))


def local_route(ids: tf.Tensor, rows: int, table: str, *, is_replicated: bool = False) -> Route:
    """Returns the route of ids whose rows are all on this worker, for `combine_distinct`: it exchanges nothing.

    Args:
      ids: int32 or int64 of any shape, each in [0, rows). Otherwise the step fails with InvalidArgumentError.
      rows: the number of rows of the table.
      table: the table's name, for messages.
      is_replicated: whether it is a replicated variable, which is not in the counters of tables.
    """
    return _local_route(ids, "replicated_rows" if is_replicated else "rows", [rows], table)


def local_route_of_keys(keys: tf.Tensor, table: str, *, counts: bool) -> Route:
    """Returns the route of keys of a dynamic table on this worker: see `local_route` and `route_keys`."""
    if keys.dtype == tf.string:
        distinct, times, inverse = library.ops.lockstep_distinct_strings(keys, table=table)
        return Route(distinct, times, (Stage(inverse, None, None, "local"),))
    return _local_route(keys, "counted_keys" if counts else "keys", [], table)


def _local_route(ids: tf.Tensor, ids_are: str, num_rows: list[int], table: str) -> Route:
    (distinct,), (inverse,) = library.ops.lockstep_distinct(
        [ids],
        N=1,
        ids_are=[ids_are],
        num_rows=num_rows,
        tables=[table],
        lockstep_group=context.options.group_lookups,
    )
    times = None
    if ids_are == "counted_keys":
        distinct, times = tf.unstack(distinct, num=2, axis=1)
    return Route(distinct, times, (Stage(inverse, None, None, "local"),))


def combine(rows: tf.Tensor, route: Route, sums: bool = False) -> tf.Tensor:
    """Returns the rows [M, D...] to the workers that requested them, and there a row for each id: [ids..., D...].

    Args:
      rows: the rows of `route.local_rows`.
      route: the way of the ids.
      sums: whether gradients are plain sums over the workers, except in a scope. In a scope, and by default, they are
        means, weighted by the workers' rows of the batch, or what option `embedding_gradient` says.
    """
    return _back(rows, route, "ids", sums)


def combine_distinct(rows: tf.Tensor, route: Route, sums: bool = False) -> DistinctRows:
    """Returns the rows to the workers that requested them, and there a row for each distinct id: see `combine`."""
    first = route.stages[0]
    return DistinctRows(rows if first.name == "local" else _back(rows, route, "distinct_ids", sums), first.inverse)


def distinct_rows(
    variable: tf.Variable,
    ids: tf.Tensor,
    shard: Shard,
    table: str,
    sums: bool = False,
    problem: tf.Tensor | None = None,
) -> DistinctRows:
    """Returns the row of each distinct id of a sharded table, also on one worker.

    Args:
      variable: the rows of this worker.
      ids: as for `route`, like `shard` and `table`.
      shard: says where the rows are.
      table: the table's name, for messages.
      sums: see `combine`.
      problem: see `route`; without a route, steps that find an error fail themselves.
    """
    made = local_route(ids, shard.rows, table) if shard.world_size == 1 else route(ids, shard, table, problem)
    return combine_distinct(read_rows(variable, made.local_rows), made, sums)


def _back(rows: tf.Tensor, route: Route, rows_of: str, sums: bool) -> tf.Tensor:
    gradients = _SUM if sums and not apart.is_scope_open() else _BY_OPTION

    def back(rows: tf.Tensor) -> tf.Tensor:
        for stage in reversed(route.stages[1:]):
            rows = _combine(rows, stage, "ids", gradients)
        return _combine(rows, route.stages[0], rows_of, gradients)

    return wire.through(rows, back)


def _combine(rows: tf.Tensor, stage: Stage, rows_of: str, gradients: str) -> tf.Tensor:
    (combined,) = _in_any_order(
        library.ops.lockstep_combine(
            [rows],
            [stage.inverse],
            [stage.send_splits],
            [stage.recv_splits],
            stage=stage.name,
            rows_of=[rows_of],
            gradients=[gradients],
            lockstep_group=context.options.group_lookups,
        )
    )
    return combined


def _combine_gradient(grad: tf.Tensor, stage: Stage, rows_of: str) -> tf.Tensor:
    (summed,) = _in_any_order(
        library.ops.lockstep_combine_gradient(
            [grad],
            [stage.inverse],
            [stage.send_splits],
            [stage.recv_splits],
            stage=stage.name,
            rows_of=[rows_of],
            lockstep_priority=Priority.TABLE,
            lockstep_group=context.options.group_lookups,
        )
    )
    return summed


def _in_any_order(outputs: Any) -> Any:
    """Returns a step's outputs, and allows a `tf.function` to run its operation as soon as the inputs are ready.

    A `tf.function` runs operations with a state in the order of the program. The only state of these operations is the
    job's, and a run's graph orders them. If one had to wait for another, they could not be grouped.
    """
    operations = getattr(tf.compat.v1.get_default_graph(), "experimental_acd_manager", None)
    if operations is not None:
        operations.run_independently(tf.nest.flatten(outputs)[0].op)
    return outputs


def check_ids(ids: tf.Tensor, rows: int, table: str) -> tf.Tensor:
    """Returns `ids`; raises InvalidArgumentError for an id out of [0, rows). A job of one worker needs no route."""
    return library.ops.lockstep_check_ids(ids, num_rows=rows, table=table)


def gather_table(tensor: tf.Tensor, shard: Shard) -> tf.Tensor:
    """Returns the whole table, [rows, ...] by id, from each worker's rows [L, ...]. All workers take part."""
    return library.ops.lockstep_gather_table(tensor, **shard.attributes)


def _placement_of(op: tf.Operation) -> dict[str, int]:
    """Returns `Shard.attributes` of an operation on a whole table."""
    return {name: op.get_attr(name) for name in ("num_rows", "block", "first_rank")}


def _exchange_gradient(grad: tf.Tensor, exchange: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Returns a gradient of rows that is summed over workers in the wire type."""
    if not named_job.was_started():  # Horovod's optimizers exchange the other gradients
        apart.note_own_gradient()
    return tf.cast(exchange(wire.to_wire(grad, wire.gradient_dtype())), grad.dtype)


def _weighted(grad: Any) -> tf.Tensor:
    """Returns a gradient times the weight of this worker's rows of the batch."""
    return row_weights.weighted_gradient(tf.convert_to_tensor(grad))


def _mean(summed: tf.Tensor) -> tf.Tensor:
    """Returns the mean over workers of a sum over them, or the sum itself if option `embedding_gradient` is "sum".

    The mean is taken here, and not where an optimizer gets the gradient. There it would not be known whether a gradient
    that was accumulated, scaled or passed through a branch is a mean already.
    """
    if context.options.embedding_gradient == "sum":
        return summed
    return gradient_scale.scaled(summed, tf.cast(1.0 / context.world_size, summed.dtype))


def _stages_of(op: tf.Operation) -> Iterator[tuple[Stage, str]]:
    """Yields the stage of each lookup of an op with lists, and its `rows_of`; the op's first inputs are the values."""
    count, name = op.get_attr("N"), tf.compat.as_str(op.get_attr("stage"))
    parts = zip(*(op.inputs[i : i + count] for i in range(count, 4 * count, count)), strict=True)
    for (inverse, send_splits, recv_splits), rows_of in zip(parts, op.get_attr("rows_of"), strict=True):
        yield Stage(inverse, send_splits, recv_splits, name), tf.compat.as_str(rows_of)


@tf.RegisterGradient("LockstepCombine")
@made_on_host
def _gradient_of_combine(op: tf.Operation, *grads: Any) -> list[tf.Tensor | None]:
    summed = []
    for (stage, rows_of), gradients, grad in zip(_stages_of(op), op.get_attr("gradients"), grads, strict=True):
        values, is_sum = grad, tf.compat.as_str(gradients) == _SUM
        # A gather may have followed the lookup. Its slices are the gradients of the ids that it selected, or of places
        # among the distinct ids. For a scalar id, it selected elements of the row: then the gradient is made dense.
        if isinstance(grad, tf.IndexedSlices) and (rows_of == "distinct_ids" or stage.inverse.shape.rank):
            places = tf.cast(grad.indices, tf.int32) if rows_of == "distinct_ids" else None
            stage = stage._replace(inverse=tf.gather(stage.inverse, grad.indices) if places is None else places)
            rows_of, values = "ids", grad.values
        # A gradient is weighted in its first stage, and its mean is taken in the last one.
        values = tf.convert_to_tensor(values) if is_sum or stage.name == "owner" else _weighted(values)
        exchanged = _exchange_gradient(values, functools.partial(_combine_gradient, stage=stage, rows_of=rows_of))
        summed.append(exchanged if is_sum or stage.name == "host" else _mean(exchanged))
    return [*summed, *[None] * (3 * len(grads))]


@tf.RegisterGradient("LockstepCombineGradient")
@made_on_host
def _gradient_of_combine_gradient(op: tf.Operation, *grads: tf.Tensor) -> list[tf.Tensor | None]:
    # The sum per row is linear: its gradient gives each id the gradient of its row.
    given = [
        _combine(tf.convert_to_tensor(grad), stage, rows_of, _BY_OPTION)
        for (stage, rows_of), grad in zip(_stages_of(op), grads, strict=True)
    ]
    return [*given, *[None] * (3 * len(grads))]


@tf.RegisterGradient("LockstepGatherTable")
@made_on_host
def _gather_table_gradient(op: tf.Operation, grad: Any) -> tf.Tensor:
    summed = _exchange_gradient(
        _weighted(grad),
        lambda grad: library.ops.lockstep_reduce_table(grad, lockstep_priority=Priority.TABLE, **_placement_of(op)),
    )
    summed.set_shape(op.inputs[0].shape)
    return _mean(summed)


@tf.RegisterGradient("LockstepReduceTable")
@made_on_host
def _reduce_table_gradient(op: tf.Operation, grad: Any) -> tf.Tensor:
    return library.ops.lockstep_gather_table(tf.convert_to_tensor(grad), **_placement_of(op))


for _name in (
    "LockstepRoute",
    "LockstepRouteStrings",
    "LockstepDistinct",
    "LockstepDistinctStrings",
    "LockstepCheckIds",
):
    tf.no_gradient(_name)
