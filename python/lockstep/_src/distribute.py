"""Collectives and partitions with HybridBackend's arguments (`hb.distribute`), on those of `collectives.py`.

All of them work on one tensor, in a graph or eagerly, and have gradients, those of `allgather` and `broadcast` as well.
R is the number of ranks.
"""

from __future__ import annotations

import enum

import tensorflow as tf

from lockstep._src import collectives
from lockstep._src.context import context


class CollectiveOps(enum.IntEnum):
    """Reductions of `allreduce`."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


class Topology(enum.IntEnum):
    """Which workers take part in an exchange."""

    ALL = 0  # all of the job
    INTRA_NODE = 1  # those of this worker's host
    INTER_NODE = 2  # those with this worker's local rank, on all hosts


_REDUCTIONS = {
    CollectiveOps.SUM: "sum",
    CollectiveOps.PROD: "prod",
    CollectiveOps.MAX: "max",
    CollectiveOps.MIN: "min",
    CollectiveOps.AVG: "mean",
}


def active_size(topology: int = Topology.ALL) -> int:
    """The number of workers in a topology."""
    topology = Topology(topology)
    if topology is Topology.INTRA_NODE:
        return context.local_world_size
    if topology is Topology.INTER_NODE:
        return context.world_size // context.local_world_size
    return context.world_size


def allreduce(value: tf.Tensor, reduce_op: int | None = None, name: str | None = None) -> tf.Tensor:
    """Reduces a tensor over all ranks.

    Args:
      value: of one shape on all ranks.
      reduce_op: one of `CollectiveOps`; None is SUM. AVG takes floating-point types alone.
      name: of the operation.

    Returns:
      A tensor of the shape of `value`.

    Raises:
      ValueError: there is no such reduction.
    """
    reduction = _REDUCTIONS[CollectiveOps.SUM if reduce_op is None else CollectiveOps(reduce_op)]
    return collectives.allreduce(value, op=reduction, name=name)


def broadcast(value: tf.Tensor, root_rank: int | None = None, name: str | None = None) -> tf.Tensor:
    """Gives every rank the tensor of rank `root_rank` (None: 0); of one shape on all ranks."""
    return collectives.broadcast(value, root=root_rank or 0, name=name)


def allgather(value: tf.Tensor, varying_size: bool = True, name: str | None = None) -> tf.Tensor:
    """Gives every rank the rows of all ranks, in the order of ranks.

    Args:
      value: [n, ...], or a scalar, which counts as one row.
      varying_size: whether n differs over ranks. False says that it does not, which makes the result's shape known.
      name: of the operation.

    Returns:
      [sum of all n, ...]
    """
    value = tf.convert_to_tensor(value)
    rows = tf.reshape(value, [1]) if value.shape.rank == 0 else value
    gathered = collectives.allgather(rows, name=name)
    if not varying_size and rows.shape.rank and rows.shape[0] is not None:
        gathered = tf.ensure_shape(gathered, [context.world_size * rows.shape[0], *rows.shape[1:]])
    return gathered


def alltoall(
    value: tf.Tensor,
    sizes: tf.Tensor | None = None,
    common_shape: tf.TensorShape | None = None,
    topology: int = Topology.ALL,
    name: str | None = None,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends each rank some rows, and receives some from each.

    Args:
      value: [n, ...]; the first sizes[0] rows go to rank 0, the next sizes[1] to rank 1, and so on.
      sizes: [R] integers, n together; None: each rank gets the same number.
      common_shape: the shape of a row, where `value` does not tell.
      topology: who takes part, as long as that is all workers.
      name: of the operation.

    Returns:
      What was received, in the order of ranks, of the shape of `value`. With `sizes` a pair of it and of how many rows
      came from each rank, [R] of the type of `sizes`.

    Raises:
      NotImplementedError: `topology` leaves workers out.
    """
    if active_size(topology) != context.world_size:
        raise NotImplementedError(
            f"alltoall: topology {Topology(topology).name} has {active_size(topology)} of the job's "
            f"{context.world_size} workers; an exchange takes place among all of them"
        )
    value = tf.convert_to_tensor(value)
    if sizes is None:
        return tf.ensure_shape(collectives.alltoall(value, name=name)[0], value.shape)
    sizes = tf.convert_to_tensor(sizes)
    received, received_sizes = collectives.alltoall(value, splits=sizes, name=name)
    if common_shape is not None:
        received = tf.ensure_shape(received, tf.TensorShape([None]).concatenate(common_shape))
    return received, tf.cast(received_sizes, sizes.dtype)


def partition(ids: tf.Tensor, num_partitions: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Deals ids out: partition p gets those with floormod(id, num_partitions) == p, in their order.

    Returns:
      (parts, positions): for each partition its ids, and where in `ids` they stood (int32).
    """
    ids = tf.reshape(ids, [-1])
    positions = tf.dynamic_partition(
        tf.range(tf.size(ids)), tf.cast(tf.math.floormod(ids, num_partitions), tf.int32), num_partitions
    )
    return [tf.gather(ids, p) for p in positions], positions


def partition_by_modulo(
    ids: tf.Tensor, num_partitions: int, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sorts ids by floormod(id, num_partitions); ids of one partition keep their order.

    Args:
      ids: integers [n].
      num_partitions: P.
      name: of the operations.

    Returns:
      (sorted, sizes, indices): the ids [n]; how many each partition has, int32 [P]; and for each of `ids` where it is
      in `sorted`, int32 [n]: `tf.gather(sorted, indices)` gives `ids`.
    """
    with tf.name_scope(name or "partition_by_modulo"):
        return _partition_by(ids, tf.math.floormod(ids, num_partitions), num_partitions)


def partition_by_dual_modulo_stage_one(
    ids: tf.Tensor, num_partitions: int, modulus: int, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """As `partition_by_modulo`, by floormod(id, num_partitions * modulus) % num_partitions: first inside a host."""
    with tf.name_scope(name or "partition_by_dual_modulo_stage_one"):
        within = tf.math.floormod(ids, num_partitions * modulus)
        return _partition_by(ids, tf.math.floormod(within, num_partitions), num_partitions)


def partition_by_dual_modulo_stage_two(
    ids: tf.Tensor, num_partitions: int, modulus: int, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """As `partition_by_modulo`, by floormod(id, num_partitions * modulus) // modulus: then between hosts."""
    with tf.name_scope(name or "partition_by_dual_modulo_stage_two"):
        within = tf.math.floormod(ids, num_partitions * modulus)
        return _partition_by(ids, tf.math.floordiv(within, modulus), num_partitions)


def _partition_by(ids: tf.Tensor, owners: tf.Tensor, num_partitions: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    ids = tf.convert_to_tensor(ids)
    parts = tf.dynamic_partition(tf.range(tf.size(ids)), tf.cast(owners, tf.int32), num_partitions)
    order = tf.ensure_shape(tf.concat(parts, axis=0), ids.shape)
    return tf.gather(ids, order), tf.stack([tf.size(part) for part in parts]), tf.math.invert_permutation(order)
