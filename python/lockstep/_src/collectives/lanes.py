"""The two lanes on which gradients travel, behind one small interface.

The ordered lane connects all workers of the job. Tensors are matched by their place in the graph, which is the same on
all ranks. They are named after their bucket or variable. The engine compares the graphs before they first run.

The named lane connects the ranks of a process set. Tensors are matched by their names, in any order, so graphs may
differ. Tensors are named by their number among the gradients. Ranks compare their variables at each exchange, by the
shape of a tensor without elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from lockstep._src.collectives import named
from lockstep._src.collectives.exchangeable import check_types
from lockstep._src.collectives.ordered import Priority, named_call
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops


class OrderedLane:
    """The lane of all workers of the job, which have the same graph.

    Attributes:
      reaches_all: whether all workers of the job take part, so that all of them get the same result.
    """

    reaches_all = True

    def is_alone(self) -> bool:
        """Returns whether no other rank exists to exchange with."""
        return context.world_size == 1

    def takes_part(self) -> bool:
        """Returns whether this process is one of the ranks, which all workers are."""
        return True

    def check(self, caller: str) -> None:
        """Connects to the other workers, unless this process is connected already; errors would name `caller`."""
        context.ensure_initialized()

    def scope_of(self, caller: str) -> str:
        """Returns the name scope of an exchange: the caller's name, which TensorFlow makes unique."""
        return caller

    def name_of(self, scope: str, variable: Any, number: int) -> str:
        """Returns the name of a variable's gradient, the `number`-th of an exchange: the variable's name."""
        return variable.name.split(":")[0].replace("/", "_")

    def agree(self, describe: Callable[[], Sequence[int]], scope: str) -> list[Any]:
        """Returns operations that fail on all ranks if `describe` gives them different numbers.

        There are none, because the engine compares the graphs.
        """
        return []

    def allreduce(
        self, tensors: Sequence[tf.Tensor], names: Sequence[str], reduction: str, bucket: int, predivide_factor: float
    ) -> list[tf.Tensor]:
        """Reduces tensors that travel together: one operation for each type, which is named after the bucket.

        Args:
          tensors: each has the same shape on all ranks.
          names: one for each tensor, the same on all ranks.
          reduction: one of `named.REDUCTIONS`.
          bucket: the number of this call in its exchange.
          predivide_factor: divides tensors before they are reduced, and multiplies the results.
        """
        assert predivide_factor == 1.0, "factors are for the named lane"
        name = f"bucket_{bucket:03d}"
        check_types("LockstepAllReduce", tensors, [f"allreduce '{name}'"] * len(tensors))
        return ops.lockstep_all_reduce(
            tensors,
            reduce_op=reduction,
            lockstep_priority=Priority.BUCKET + bucket,
            **named_call(name, "allreduce"),
        )

    def allgather(self, tensors: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        """Returns the rows of all ranks, in rank order, of each tensor, by an operation for each."""
        check_types("LockstepAllGather", tensors, [f"allgather '{name}'" for name in names])
        return [
            ops.lockstep_all_gather(tensor, lockstep_priority=Priority.SLICES, **named_call(name, "allgather")).gathered
            for tensor, name in zip(tensors, names, strict=True)
        ]

    def divided(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns values divided by the number of ranks.

        They are multiplied, as in the gradients of sharded tables, so that both give the same bits.
        """
        return [value * tf.cast(1.0 / context.world_size, value.dtype) for value in values]


class Ranks(Protocol):
    """The ranks of a named lane. They are needed only when gradients are exchanged, so they may be set later."""

    process_set_id: int | None

    def included(self) -> bool:
        """Returns whether this process is one of the ranks, as it is by default."""
        return True

    def size(self) -> int:
        """Returns the number of ranks."""
        raise NotImplementedError


class AllRanks(Ranks):
    """All ranks of the job, as a process set. `size` is never called, since this process takes part."""

    process_set_id = named.ALL

    def size(self) -> int:
        """Returns the number of ranks."""
        return context.world_size


class NamedLane:
    """The lane of a process set, whose ranks may have different graphs. It has the methods of `OrderedLane`.

    Args:
      ranks: the ranks of the process set.
    """

    reaches_all = False

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def is_alone(self) -> bool:
        """Returns False: a set of one rank has an exchange as well."""
        return False

    def takes_part(self) -> bool:
        """Returns whether this process is in the set."""
        return self._ranks.included()

    def check(self, caller: str) -> None:
        """Raises NotImplementedError inside of XLA, and ValueError if the job doesn't have the process set."""
        if not tf.executing_eagerly() and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise NotImplementedError(
                f"{caller}: XLA cannot compile the exchange of gradients; compile the model, or the tf.function, with "
                "jit_compile=False"
            )
        if self._ranks.process_set_id is None:
            raise ValueError(
                f"{caller}: {self._ranks} is not in use: it was not added to the job, or was removed; add it with "
                "add_process_set()"
            )

    def scope_of(self, caller: str) -> str:
        """Returns a scope that no other exchange of the graph has; tensors' names begin with it."""
        scope = f"{caller}_Allreduce"
        if not tf.executing_eagerly():
            # For a branch of a conditional, the graph around it is used: two branches may run at the same time.
            graph = tf.compat.v1.get_default_graph()
            while type(graph).__name__ in ("CondBranchFuncGraph", "WhileBodyFuncGraph"):
                graph = graph.outer_graph
            scope = graph.unique_name(scope)
        return f"{scope}/"

    def name_of(self, scope: str, variable: Any, number: int) -> str:
        """Returns a name with the number; variables' names may differ between ranks, as Keras counts layers."""
        return f"{scope}grad_{number}"

    def agree(self, describe: Callable[[], Sequence[int]], scope: str) -> list[Any]:
        """Compares numbers by the shape of a tensor without elements, so no data is sent."""
        nothing = tf.zeros([0, *describe()], tf.int32)
        return self.allreduce([nothing], [f"{scope}variables_with_gradients_which"], "sum", 0, 1.0)

    def allreduce(
        self, tensors: Sequence[tf.Tensor], names: Sequence[str], reduction: str, bucket: int, predivide_factor: float
    ) -> list[tf.Tensor]:
        """Reduces tensors by name; one operation reduces all tensors of one type."""
        check_types("LockstepNamedAllReduce", tensors, [f"allreduce '{name}'" for name in names])
        result: dict[int, tf.Tensor] = {}
        for places in by_type(tensors):
            reduced = ops.lockstep_named_all_reduce(
                [tensors[i] for i in places],
                **self._called("allreduce", [names[i] for i in places]),
                reduction=reduction,
                **named.factors(1 / predivide_factor, predivide_factor),
            )
            named.leave_unordered(reduced[0])
            result |= zip(places, reduced, strict=True)
        return [result[i] for i in range(len(tensors))]

    def allgather(self, tensors: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        """Gathers tensors by name; one operation gathers all tensors of one type."""
        check_types("LockstepNamedAllGather", tensors, [f"allgather '{name}'" for name in names])
        result: dict[int, tf.Tensor] = {}
        for places in by_type(tensors):
            called = self._called("allgather", [names[i] for i in places])
            gathered = ops.lockstep_named_all_gather([tensors[i] for i in places], **called)
            named.leave_unordered(gathered[0])
            result |= zip(places, gathered, strict=True)
        return [result[i] for i in range(len(tensors))]

    def divided(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Divides by the number of ranks at the time when the operation runs; an elastic job may change it."""
        ranks = named.size_of(self._group()) if self.takes_part() else self._ranks.size()
        return [value / tf.cast(ranks, value.dtype) for value in values]

    def _group(self) -> int:
        number = self._ranks.process_set_id
        assert number is not None, "`check` refuses sets that are not in use"
        return number

    def _called(self, kind: str, names: Sequence[str]) -> dict[str, Any]:
        """Returns the arguments of an operation whose tensors have these names, in the current scope.

        In a graph the operation has the first name, and each tensor the operation's name. If a function is called from
        two places, each call's operations have their own names, and may run at the same time.
        """
        scope, _, name = names[0].rpartition("/")
        by_name = {"names": names} if tf.executing_eagerly() or not scope else {"name": name}
        return named.call_arguments(kind, len(names), group=self._group(), **by_name)


Lane = OrderedLane | NamedLane


def by_type(tensors: Sequence[tf.Tensor]) -> list[list[int]]:
    """Returns the places of the tensors of each type; types are in the order of their first tensors."""
    places: dict[tf.DType, list[int]] = {}
    for i, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(i)
    return list(places.values())
