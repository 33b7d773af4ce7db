"""HybridBackend's classes of communicators. Here all their objects use the one communicator of the process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.compat.hybridbackend import distribute
from lockstep._src.engine.context import context


class Collective:
    """The job's communicator as an object; `get` returns it. Its methods are the functions of `distribute`."""

    shared_name = "lockstep"
    name = shared_name

    @classmethod
    @functools.cache
    def get(cls) -> Collective:
        """Returns the only instance in this process."""
        return cls()

    @property
    def handle(self) -> None:
        """HybridBackend's resource in the graph, which does not exist here.

        Raises:
          NotImplementedError: always.
        """
        raise NotImplementedError("Collective.handle: the communicator is not a graph resource and needs no handle")

    @property
    def create(self) -> tf.Operation:
        """An operation that does nothing, because the communicator already exists."""
        return tf.no_op("create_collective")

    @property
    def is_initialized(self) -> tf.Tensor:
        """Always true."""
        return tf.constant(True)

    allreduce = staticmethod(distribute.allreduce)
    alltoall = staticmethod(distribute.alltoall)
    broadcast = staticmethod(distribute.broadcast)
    allgather = staticmethod(distribute.allgather)


class RpcCollective:
    """HybridBackend's gRPC collectives, which use this project's engine here.

    Args:
      group_world: the devices of the participating workers: all of them (`context.devices`), or one.
      group_rank: this worker's index in `group_world`.

    Raises:
      NotImplementedError: the group has several, but not all, of the job's workers.
    """

    # (merge_op, final_op) -> the engine's reduction.
    _REDUCTIONS = {("Add", "Id"): "sum", ("Add", "Div"): "mean", ("Mul", "Id"): "prod"}

    def __init__(self, group_world: Sequence[str], group_rank: int) -> None:
        self._size = len(set(group_world))
        self._rank = group_rank
        if self._size not in (1, context.world_size):
            raise NotImplementedError(
                f"RpcCollective: got a group of {self._size} of the job's {context.world_size} workers, "
                "wanted all or one"
            )

    @property
    def group_key(self) -> int:
        """Always 1, because there is only one group."""
        return 1

    @property
    def group_size(self) -> int:
        """The number of participating workers."""
        return self._size

    def instance_scope(self, shared_name: str, name: str | None = None) -> Any:
        """Raises an error: HybridBackend's keys for TensorFlow's own collectives do not exist here.

        Raises:
          NotImplementedError: always.
        """
        raise NotImplementedError(
            f"RpcCollective.instance_scope({shared_name!r}): the engine identifies exchanges by name, not by key"
        )

    def broadcast(
        self, fn: Callable[[], Any], dtype: Any, shape: Any, root_rank: int | None = None, name: str | None = None
    ) -> tf.Tensor:
        """Returns on all workers the tensor of `shape` that `fn` returns on worker `root_rank` (default 0)."""
        root = root_rank or 0
        if self._size == 1:
            return tf.convert_to_tensor(fn(), dtype)
        value = tf.convert_to_tensor(fn(), dtype) if self._rank == root else tf.zeros(shape, dtype)
        return ordered.broadcast(value, root=root, name=name)

    def allreduce(self, value: Any, merge_op: str = "Add", final_op: str = "Id", name: str | None = None) -> tf.Tensor:
        """Reduces a tensor over all workers of the group.

        Args:
          value: a tensor of the same shape on all workers.
          merge_op: 'Add' or 'Mul'.
          final_op: 'Id', or, with 'Add', 'Div' for the mean.
          name: the operation's name.

        Raises:
          ValueError: the operations are others.
        """
        reduction = self._REDUCTIONS.get((merge_op, final_op))
        if reduction is None:
            raise ValueError(
                f"RpcCollective.allreduce: merge_op is {merge_op!r} and final_op {final_op!r}, wanted one of "
                f"{', '.join(map(str, self._REDUCTIONS))}"
            )
        value = tf.convert_to_tensor(value)
        return value if self._size == 1 else ordered.allreduce(value, op=reduction, name=name)
