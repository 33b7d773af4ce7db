"""Collectives and partitions under HybridBackend's names and with its arguments (`hb.distribute`).

In a job of one worker, collectives return their value unchanged, as in HybridBackend. Gradients also follow
HybridBackend: the gradient of a sum is a sum.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered, wire
from lockstep._src.collectives.exchangeable import as_tensor
from lockstep._src.engine.context import context


class CollectiveOps:
    """The reductions of `allreduce`."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


class Topology:
    """The groups of workers that can take part in a collective."""

    # All workers of the job.
    ALL = 0
    # The workers of this host.
    INTRA_NODE = 1
    # One worker of each host: those with the same local rank as this worker.
    INTER_NODE = 2


_REDUCTIONS = {
    CollectiveOps.SUM: "sum",
    CollectiveOps.PROD: "prod",
    CollectiveOps.MAX: "max",
    CollectiveOps.MIN: "min",
    CollectiveOps.AVG: "mean",
}


def active_size(topology: int) -> int:
    """Returns the number of workers in a topology. Raises ValueError if it is not one of `Topology`."""
    sizes = {
        Topology.ALL: context.world_size,
        Topology.INTRA_NODE: context.local_world_size,
        Topology.INTER_NODE: context.world_size // context.local_world_size,
    }
    if topology not in sizes:
        raise ValueError(f"topology is {topology!r}, wanted one of Topology.ALL, INTRA_NODE, INTER_NODE")
    return sizes[topology]


def allreduce(value: Any, reduce_op: int | None = None, name: str | None = None) -> tf.Tensor:
    """Reduces a tensor over all workers.

    Args:
      value: a tensor of the same shape on all workers.
      reduce_op: one of `CollectiveOps`; None means SUM.
      name: the operation's name.

    Raises:
      ValueError: `reduce_op` is not one of `CollectiveOps`.
    """
    reduction = _REDUCTIONS.get(CollectiveOps.SUM if reduce_op is None else reduce_op)
    if reduction is None:
        raise ValueError(f"allreduce: reduce_op is {reduce_op!r}, wanted one of CollectiveOps")
    value = as_tensor("allreduce", value, name)
    return value if context.world_size == 1 else ordered.allreduce(value, op=reduction, name=name)


def broadcast(value: Any, root_rank: int | None = None, name: str | None = None) -> tf.Tensor:
    """Returns on every worker the tensor of worker `root_rank` (default 0). No gradient flows back."""
    value = as_tensor("broadcast", value, name)
    if context.world_size > 1:
        value = ordered.broadcast(value, root=root_rank or 0, name=name)
    return tf.stop_gradient(value)


def allgather(value: Any, varying_size: bool = True, name: str | None = None) -> tf.Tensor:
    """Returns on every worker the rows of all workers, in the order of ranks. No gradient flows back.

    Args:
      value: [n, ...]; a scalar counts as one row.
      varying_size: False promises that n is the same on all workers; the result then has a static shape.
      name: the operation's name.

    Returns:
      [sum of all n, ...]; `value` itself in a job of one worker.
    """
    value = as_tensor("allgather", value, name)
    if context.world_size > 1:
        rows = value[tf.newaxis] if value.shape.rank == 0 else value
        value = ordered.allgather(rows, name=name)
        count, *inner = rows.shape.as_list() if rows.shape.rank is not None else [None]
        if not varying_size and count is not None:
            value.set_shape([count * context.world_size, *inner])
    return tf.stop_gradient(value)


def alltoall(
    value: Any,
    sizes: Any = None,
    common_shape: Any = None,
    topology: int = Topology.ALL,
    name: str | None = None,
) -> Any:
    """Sends rows to each worker, and receives rows from each. float32 travels in the type of `comm_wire_dtype`.

    Args:
      value: [n, ...]. With `sizes`, the rows of `common_shape` one after the other, in any shape with this number of
        elements.
      sizes: [R] integers, the number of rows for each of the R workers; None sends the same number to each.
      common_shape: the shape of a row; None for scalars.
      topology: one of `Topology`. It must have the same workers as ALL, or this worker only.
      name: the operation's name.

    Returns:
      The received rows, in the order of ranks. With `sizes`, a pair of these rows and the number of rows [R] from each
      worker, in the type of `sizes`.

    Raises:
      NotImplementedError: the topology has several, but not all, of the job's workers.
    """
    value = as_tensor("alltoall", value, name)
    size = active_size(topology)
    sizes = None if sizes is None else tf.convert_to_tensor(sizes)
    if size == 1:
        return value if sizes is None else (value, sizes)
    if size != context.world_size:
        raise NotImplementedError(
            f"alltoall: got a topology of {size} of the job's {context.world_size} workers, wanted all or one"
        )
    if sizes is None:
        received = wire.through(value, lambda rows: ordered.alltoall(rows, name=name)[0])
        received.set_shape(value.shape)
        return received
    rows = tf.reshape(value, [-1, *tf.TensorShape(common_shape or ()).as_list()])
    splits: list[tf.Tensor] = []

    def exchange(rows: tf.Tensor) -> tf.Tensor:
        received, received_splits = ordered.alltoall(rows, splits=sizes, name=name)
        splits.append(received_splits)
        return received

    received = wire.through(rows, exchange)
    return received, tf.cast(splits[0], sizes.dtype)


def partition(ids: Any, num_partitions: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Partitions ids by their remainder modulo `num_partitions`.

    Args:
      ids: integers of any shape.
      num_partitions: the number of parts.

    Returns:
      (parts, indices): for each part its ids, [n_p], and their positions in the flat `ids`, [n_p].
    """
    ids = tf.reshape(tf.convert_to_tensor(ids), [-1])
    owners = tf.cast(tf.math.floormod(ids, num_partitions), tf.int32)
    parts = tf.dynamic_partition(ids, owners, num_partitions)
    return parts, tf.dynamic_partition(tf.range(tf.size(ids)), owners, num_partitions)


def partition_by_modulo(
    ids: Any, num_partitions: int, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sorts ids by their remainder modulo `num_partitions`; ids with the same remainder keep their order.

    Args:
      ids: [n] integers.
      num_partitions: the number of parts.
      name: the name scope of the operations.

    Returns:
      (sorted, sizes, indices): the sorted ids [n]; the number of ids of each part, [num_partitions] int32; the position
      of each id in `sorted`, [n] int32, so that `ids == gather(sorted, indices)`.
    """
    with tf.name_scope(name or "partition_by_modulo"):
        ids = tf.convert_to_tensor(ids)
        return _sort(ids, tf.math.floormod(ids, num_partitions), num_partitions)


def partition_by_dual_modulo_stage_one(
    ids: Any, num_partitions: int, modulus: int, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sorts ids by (id mod num_partitions * modulus) mod num_partitions; see `partition_by_modulo`."""
    with tf.name_scope(name or "partition_by_dual_modulo_stage_one"):
        ids = tf.convert_to_tensor(ids)
        return _sort(ids, tf.math.floormod(_both(ids, num_partitions, modulus), num_partitions), num_partitions)


def partition_by_dual_modulo_stage_two(
    ids: Any, num_partitions: int, modulus: int, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sorts ids by (id mod num_partitions * modulus) div modulus; see `partition_by_modulo`."""
    with tf.name_scope(name or "partition_by_dual_modulo_stage_two"):
        ids = tf.convert_to_tensor(ids)
        return _sort(ids, tf.math.floordiv(_both(ids, num_partitions, modulus), modulus), num_partitions)


def _both(ids: tf.Tensor, num_partitions: int, modulus: int) -> tf.Tensor:
    return tf.math.floormod(ids, num_partitions * modulus)


def _sort(ids: tf.Tensor, owners: tf.Tensor, parts: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    owners = tf.cast(owners, tf.int32)
    order = tf.argsort(owners, stable=True)
    sizes = tf.math.bincount(owners, minlength=parts, maxlength=parts, dtype=tf.int32)
    return tf.gather(ids, order), sizes, tf.math.invert_permutation(order)
