"""Collectives on tensors, with gradients. In graphs, in `tf.function` and eagerly.

Every rank makes the same calls. In a graph, a pass of the op library puts the collectives of a run into one order,
which is the same on every rank; eagerly, the program's order counts. R is the number of ranks.

Gradients belong to the sum of all ranks' losses: the effect of a rank's input on the losses of all ranks. To use the
mean of the losses instead, divide each loss by R, or reduce its gradients with "mean".
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import tensorflow as tf

from lockstep._src.collectives.exchangeable import as_tensors
from lockstep._src.engine import host_memory
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops

Tensors = TypeVar("Tensors", tf.Tensor, Sequence[tf.Tensor])

# The reductions of `allreduce` and `reducescatter`.
REDUCE_OPS = ("sum", "mean", "min", "max", "prod")


class Priority(enum.IntEnum):
    """The priorities of the exchanges of a training step, all in one place.

    Gradients depend only on the forward pass, and on no other exchange. So only these values decide which goes first.
    Collectives run one after another: each waits for the input of the one before it. Therefore their order must be that
    in which the backward pass produces the inputs, from the last layer to the first.
    """

    # The priority of a user's collectives and of the forward pass: metrics of a step are ready before its gradients.
    DEFAULT = 0
    # Bucket k of the replicated dense gradients has priority BUCKET + k; bucket 0 has the last layers' gradients.
    BUCKET = 1 << 20
    # `tf.IndexedSlices` of replicated variables, which are embeddings: the first layer of a model, and so the last one
    # of its backward pass.
    SLICES = 2 << 20
    # The gradients of sharded tables. They are ready equally late, and are the largest ones.
    TABLE = 3 << 20


_UNIQUE = re.compile(r"_[0-9]+(?=/|$)")
_NUMBER = re.compile(r"[0-9]+")


def named_call(name: str | None, kind: str) -> dict[str, str]:
    """Returns the arguments that give an op of the ordered lane its name, in graphs and eagerly.

    A graph's node has the name. An eager op has no node, so it gets the name as an attribute. As in graphs, the numbers
    that make names unique are left out. A "*" takes the place of other numbers, such as step numbers, since
    TensorFlow keeps a kernel for each value of an attribute.

    Args:
      name: the name that the caller has chosen, if any.
      kind: the name of the node otherwise.
    """
    if tf.executing_eagerly() and name is not None:
        return {"name": name, "lockstep_name": _NUMBER.sub("*", _UNIQUE.sub("", name))}
    return {"name": name or kind}


def allreduce(tensors: Tensors, op: str = "sum", name: str | None = None, priority: int = 0) -> Tensors:
    """Reduces tensors over all ranks.

    Args:
      tensors: a tensor, or a list of tensors of one type, which is exchanged as one bucket. Shapes are the same on all
        ranks.
      op: "sum", "mean" (floating-point types), "min", "max" or "prod". Sums are computed in the order of ranks, so
        every rank gets the same bits.
      name: the name of the operation, for errors and timelines. Ranks compare it. Eagerly, numbers in it don't count.
      priority: among collectives that don't wait for each other, the one with the lower value goes first; see
        `Priority` for the values of gradients.

    Returns:
      A tensor, or a list of tensors, of the shapes of `tensors`.

    Raises:
      TypeError: a tensor is ragged or sparse, or of a type that cannot be sent.
      ValueError: `op` is none of these.
      tf.errors.FailedPreconditionError: when it runs, ranks disagree about the tensors or the reduction.
    """
    if op not in REDUCE_OPS:
        raise ValueError(f"allreduce: op is {op!r}, wanted one of {', '.join(REDUCE_OPS)}")
    return _bucket("allreduce", "LockstepAllReduce", ops.lockstep_all_reduce, tensors, name, priority, reduce_op=op)


def broadcast(tensors: Tensors, root: int = 0, name: str | None = None, priority: int = 0) -> Tensors:
    """Returns on every rank the tensors of rank `root`.

    Args:
      tensors: a tensor, or a list of tensors of any numeric types, exchanged as one. Shapes are the same on all ranks.
      root: the rank whose tensors are sent; a Python integer, the same on all ranks.
      name: the name of the operation.
      priority: see `allreduce`.

    Returns:
      A tensor, or a list of tensors, of the shapes of `tensors`.
    """
    return _bucket("broadcast", "LockstepBroadcast", ops.lockstep_broadcast, tensors, name, priority, root=root)


def allgather(tensor: tf.Tensor, name: str | None = None, priority: int = 0) -> tf.Tensor:
    """Returns on every rank the rows of all ranks, in the order of ranks.

    Args:
      tensor: [n, ...]; n may differ between ranks, the other dimensions must be equal.
      name: the name of the operation.
      priority: see `allreduce`.

    Returns:
      [sum of all n, ...]
    """
    context.ensure_initialized()
    (tensor,) = as_tensors("allgather", "LockstepAllGather", [tensor], [name])
    return ops.lockstep_all_gather(tensor, lockstep_priority=priority, **named_call(name, "allgather")).gathered


def alltoall(
    tensor: tf.Tensor, splits: tf.Tensor | None = None, name: str | None = None, priority: int = 0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends rows to each rank, and receives rows from each.

    Args:
      tensor: [n, ...]; the first splits[0] rows go to rank 0, the next splits[1] to rank 1, and so on. n may differ
        between ranks, the other dimensions must be equal.
      splits: [R] integers of at least 0 whose sum is n. None sends the same number to each rank.
      name: the name of the operation.
      priority: see `allreduce`.

    Returns:
      (received, received_splits): [sum of received_splits, ...] in the order of ranks, and int64 [R], the number of
      rows from each rank.

    Raises:
      tf.errors.InvalidArgumentError: on every rank, when it runs, if a rank's `splits` are not as said above.
    """
    context.ensure_initialized()
    (tensor,) = as_tensors("alltoall", "LockstepAllToAll", [tensor], [name])
    with tf.name_scope(name or "alltoall"), host_memory.on_host():
        # If the rows cannot be divided evenly, the sum of the splits differs, and the op fails on all ranks.
        splits = tf.fill([_world()], _rows(tensor) // _world()) if splits is None else tf.cast(splits, tf.int64)
    result = ops.lockstep_all_to_all(tensor, splits, lockstep_priority=priority, **named_call(name, "alltoall"))
    return result.received, result.received_splits


def reducescatter(
    tensor: tf.Tensor, op: str = "sum", counts: tf.Tensor | None = None, name: str | None = None, priority: int = 0
) -> tf.Tensor:
    """Reduces rows over all ranks and returns this rank's share of them.

    Args:
      tensor: [n, ...], of the same shape on all ranks.
      op: see `allreduce`.
      counts: [R] integers, the same on all ranks: rank 0 gets the first counts[0] rows, and so on. None: even shares;
        the first n % R ranks have one row more.
      name: the name of the operation.
      priority: see `allreduce`.

    Returns:
      [counts[rank], ...]
    """
    if op not in REDUCE_OPS:
        raise ValueError(f"reducescatter: op is {op!r}, wanted one of {', '.join(REDUCE_OPS)}")
    context.ensure_initialized()
    (tensor,) = as_tensors("reducescatter", "LockstepReduceScatter", [tensor], [name])
    with tf.name_scope(name or "reducescatter"), host_memory.on_host():
        counts = _even_shares(_rows(tensor)) if counts is None else tf.cast(counts, tf.int64)
    return ops.lockstep_reduce_scatter(
        tensor, counts, reduce_op=op, lockstep_priority=priority, **named_call(name, "reducescatter")
    )


def barrier(name: str | None = None, priority: int = 0) -> tf.Operation | None:
    """Waits until all ranks have called this. Returns the operation in a graph, None eagerly."""
    context.ensure_initialized()
    return ops.lockstep_barrier(lockstep_priority=priority, **named_call(name, "barrier"))


def _bucket(kind: str, operation: str, run: Any, tensors: Any, name: str | None, priority: int, **more: Any) -> Any:
    """Returns the results of `run`, the operation of this type, for a tensor or for a list of tensors."""
    context.ensure_initialized()
    is_list = isinstance(tensors, (list, tuple))
    values = list(tensors) if is_list else [tensors]
    if not values:
        return []
    values = as_tensors(kind, operation, values, [name] * len(values))
    results = run(values, lockstep_priority=priority, **named_call(name, kind), **more)
    return list(results) if is_list else results[0]


def _world() -> tf.Tensor:
    return tf.constant(context.world_size, tf.int64)


def _rows(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.shape.rank == 0:
        raise ValueError("got a scalar, wanted a tensor with a dimension of rows")
    return tf.shape(tensor, out_type=tf.int64)[0]


def _even_shares(rows: tf.Tensor) -> tf.Tensor:
    ranks = tf.range(_world())
    return rows // _world() + tf.cast(ranks < rows % _world(), tf.int64)
