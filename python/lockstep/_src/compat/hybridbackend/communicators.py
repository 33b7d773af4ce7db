"""HybridBackend's classes of communicators. One communicator serves a process here, whatever object it is asked by."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.compat.hybridbackend import distribute
from lockstep._src.engine.context import context


class Collective:
    """The job's communicator as an object; `get` gives it. Methods are the functions of `distribute`."""

    shared_name = "lockstep"
    name = shared_name

    @classmethod
    @functools.cache
    def get(cls) -> Collective:
        """The one of this process."""
        return cls()

    @property
    def handle(self) -> None:
        """HybridBackend's resource in the graph.

        Raises:
          NotImplementedError: always.
        """
        raise NotImplementedError("Collective.handle: the communicator is no resource of a graph, and needs no handle")

    @property
    def create(self) -> tf.Operation:
        """What makes the communicator: nothing is left to do."""
        return tf.no_op("create_collective")

    @property
    def is_initialized(self) -> tf.Tensor:
        """Whether it is made: true."""
        return tf.constant(True)

    allreduce = staticmethod(distribute.allreduce)
    alltoall = staticmethod(distribute.alltoall)
    broadcast = staticmethod(distribute.broadcast)
    allgather = staticmethod(distribute.allgather)


class RpcCollective:
    """HybridBackend's collectives by gRPC, which go over the engine here.

    Args:
      group_world: devices of the workers that take part: those of all workers (`context.devices`), or one.
      group_rank: this worker's place in them.

    Raises:
      NotImplementedError: a part of the job's workers.
    """

    # In how the values are brought together, and what follows it.
    _REDUCTIONS = {("Add", "Id"): "sum", ("Add", "Div"): "mean", ("Mul", "Id"): "prod"}

    def __init__(self, group_world: Sequence[str], group_rank: int) -> None:
        self._size = len(set(group_world))
        self._rank = group_rank
        if self._size not in (1, context.world_size):
            raise NotImplementedError(
                f"RpcCollective: a group of {self._size} of the job's {context.world_size} workers; wanted all or one"
            )

    @property
    def group_key(self) -> int:
        """Always 1: there is one group."""
        return 1

    @property
    def group_size(self) -> int:
        """How many workers take part."""
        return self._size

    def instance_scope(self, shared_name: str, name: str | None = None) -> Any:
        """HybridBackend's keys of TensorFlow's own collectives.

        Raises:
          NotImplementedError: always.
        """
        raise NotImplementedError(
            f"RpcCollective.instance_scope({shared_name!r}): the engine knows exchanges by their names, not by keys"
        )

    def broadcast(
        self, fn: Callable[[], Any], dtype: Any, shape: Any, root_rank: int | None = None, name: str | None = None
    ) -> tf.Tensor:
        """Gives all the tensor of `shape` that `fn` makes on worker `root_rank` (0)."""
        root = root_rank or 0
        if self._size == 1:
            return tf.convert_to_tensor(fn(), dtype)
        value = tf.convert_to_tensor(fn(), dtype) if self._rank == root else tf.zeros(shape, dtype)
        return ordered.broadcast(value, root=root, name=name)

    def allreduce(self, value: Any, merge_op: str = "Add", final_op: str = "Id", name: str | None = None) -> tf.Tensor:
        """Reduces a tensor over all.

        Args:
          value: of the same shape on all.
          merge_op: 'Add' or 'Mul'.
          final_op: 'Id', or, with 'Add', 'Div' for the mean.
          name: of the operation.

        Raises:
          ValueError: other operations.
        """
        reduction = self._REDUCTIONS.get((merge_op, final_op))
        if reduction is None:
            raise ValueError(
                f"RpcCollective.allreduce: merge_op is {merge_op!r} and final_op {final_op!r}, wanted one of "
                f"{', '.join(map(str, self._REDUCTIONS))}"
            )
        value = tf.convert_to_tensor(value)
        return value if self._size == 1 else ordered.allreduce(value, op=reduction, name=name)
