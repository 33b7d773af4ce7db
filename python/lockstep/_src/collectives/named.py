"""Collectives that are matched by name, in any order of calls on each rank; the base of Horovod's API.

Only the names must be the same on all ranks; graphs and the order of calls may differ. Small tensors that are ready at
the same time are sent together. (The collectives of `ordered.py` exchange no messages about their order, and are
faster. They are for graphs that are the same on all ranks.)

Names: `names` sets the tensors' names. Without it, a graph's tensors have the name of their operation, which TensorFlow
makes from `name`. Eager operations have no names, so `name` itself is used. Without `name`, the n-th call of a kind is
named "allreduce.n". R is the number of ranks of the group.

The argument `gradient` selects the gradients. With "sum", the gradient belongs to the sum of all ranks' losses (the
transpose of the op). With "mean", it belongs to the mean of the losses, and is R times smaller. With "times", it is R
times the gradient of "sum".
Horovod uses all three.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import tensorflow as tf

from lockstep._src.collectives import exchangeable
from lockstep._src.engine import library
from lockstep._src.engine.cluster import Cluster
from lockstep._src.engine.context import connection_options, context

REDUCTIONS = ("sum", "mean", "min", "max", "product", "adasum")
ALL = 0  # the group of all ranks

_secrets: dict[int, str] = {}  # group that has a lane -> its secret


class LaneSettings(TypedDict, total=False):
    """The arguments of `open_lane` that all lanes of a job share."""

    fusion_bytes: int
    stall_warning_s: float
    stall_timeout_s: float


def open_lane(
    group: int = ALL,
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    listener: socket.socket | None = None,
    label: str = "",
    fusion_bytes: int = 64 << 20,
    stall_warning_s: float = 60,
    stall_timeout_s: float = 0,
) -> None:
    """Connects the ranks of a group; every rank of the group calls this.

    Args:
      group: the number of the group; `ALL` for all ranks of the job.
      rank: the rank of this process in the group; its rank in the job by default.
      size: the number of ranks of the group; by default of the job.
      rendezvous: "host:port" where the group's rank 0 waits for the others; the job's rendezvous by default.
      listener: on rank 0, a socket that listens there already, such as one of `socket.create_server((host, 0))`. So a
        port that was chosen at run time cannot be taken by another process. The caller closes the socket afterwards.
      label: the group's name in errors and warnings, the same on all its ranks: "process set 2 (ranks 1 and 3)". Ranks
        in these texts are those in the group.
      fusion_bytes: tensors that are ready at the same time are sent together up to this size; 0: each by itself.
      stall_warning_s: seconds until rank 0 warns on stderr of a tensor for which some ranks have not called; 0: never.
      stall_timeout_s: seconds until such a tensor fails on the ranks that wait for it; 0: never.

    Raises:
      ValueError: the environment is incomplete.
      tf.errors.FailedPreconditionError: the group has a lane already.
      tf.errors.OpError: the rendezvous failed; the message says which ranks are missing.
    """
    # The environment is read again: in an elastic job it may have changed since this process was in another round.
    cluster, options = Cluster.from_environment(os.environ), context.options
    cluster.check_can_connect()
    connection = connection_options(cluster, options)
    library.open_lane(
        group,
        dataclasses.replace(
            connection,
            rank=connection.rank if rank is None else rank,
            size=connection.size if size is None else size,
            rendezvous=connection.rendezvous if rendezvous is None else rendezvous,
            listen=connection.listen if rendezvous is None else "",
            listener=None if listener is None else listener.fileno(),
        ),
        fusion_bytes=fusion_bytes,
        named_stall_warning_s=stall_warning_s or None,
        named_stall_timeout_s=stall_timeout_s or None,
        label=label,
    )
    _secrets[group] = connection.secret


def close_lane(group: int = ALL, how: str = "") -> None:
    """Leaves a group: waiting operations in it end with CancelledError on this rank, with InternalError on others.

    Other ranks that wait for this one get the sentence `how`, which says how it left.
    """
    library.close_lane(group, how)


def secret_of(group: int = ALL) -> str:
    """Returns the secret that the ranks of a group share; empty without a lane or another rank."""
    return _secrets.get(group, "")


def start_timeline(path: str, mark_cycles: bool = False, group: int = ALL) -> None:
    """Makes rank 0 record each tensor's events in a file for viewers of Chrome traces (core/comm/named/timeline.h).

    Args:
      path: the path of the JSON file, which is replaced. Other ranks write nothing.
      mark_cycles: also marks each time that rank 0 put requests into an order.
      group: the group, whose lane must be open. The file ends with the lane, or at `stop_timeline`.

    Raises:
      tf.errors.FailedPreconditionError: the group has no lane.
      tf.errors.InvalidArgumentError: the file cannot be written.
    """
    library.start_timeline(group, path, mark_cycles)


def stop_timeline(group: int = ALL) -> None:
    """Ends the file; does nothing if there is none."""
    library.stop_timeline(group)


def allreduce(
    tensors: Sequence[tf.Tensor],
    reduction: str = "sum",
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    names: Sequence[str] | None = None,
    group: int = ALL,
) -> list[tf.Tensor]:
    """Returns postscale * reduction of (prescale * tensor) for each tensor. All tensors are reduced, or none.

    Args:
      tensors: tensors of any types; types and shapes are the same on all ranks.
      reduction: one of `REDUCTIONS`. The mean of integers is truncated; "adasum" is for floating-point types.
      prescale: the factor before the reduction.
      postscale: the factor after it.
      name: the name of the operation, or of the tensor if there is only one.
      names: the names of the tensors, the same on all ranks; they take precedence over `name`.
      group: the group of ranks.

    Raises:
      TypeError: a tensor is ragged or sparse, or of a type that cannot be sent; the message names it.
      tf.errors.FailedPreconditionError: no lane exists, or the ranks differ in shape, type, reduction or factors. All
        ranks raise this error, which lists the values of each rank.
    """
    arguments = {"reduction": reduction, **factors(prescale, postscale)}
    return _run("allreduce", library.ops.lockstep_named_all_reduce, tensors, name, names, group, arguments)


def reducescatter(
    tensors: Sequence[tf.Tensor],
    reduction: str = "sum",
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    names: Sequence[str] | None = None,
    group: int = ALL,
    gradient: str = "sum",
) -> list[tf.Tensor]:
    """Returns this rank's share of the rows of `allreduce`'s result; the first ranks may have one row more."""
    arguments = {"reduction": reduction, **factors(prescale, postscale), "gradient": gradient}
    return _run("reducescatter", library.ops.lockstep_named_reduce_scatter, tensors, name, names, group, arguments)


def allgather(
    tensors: Sequence[tf.Tensor],
    *,
    name: str | None = None,
    names: Sequence[str] | None = None,
    group: int = ALL,
    gradient: str = "sum",
) -> list[tf.Tensor]:
    """Returns the rows of all ranks, in the order of ranks; only the number of rows may differ between ranks."""
    return _run("allgather", library.ops.lockstep_named_all_gather, tensors, name, names, group, {"gradient": gradient})


def broadcast(
    tensors: Sequence[tf.Tensor],
    root: int = 0,
    *,
    name: str | None = None,
    names: Sequence[str] | None = None,
    group: int = ALL,
    gradient: str = "sum",
) -> list[tf.Tensor]:
    """Returns on all ranks the tensors of `root`, a rank in the group."""
    arguments = {"root": root, "gradient": gradient}
    return _run("broadcast", library.ops.lockstep_named_broadcast, tensors, name, names, group, arguments)


def alltoall(
    tensors: Sequence[tf.Tensor],
    splits: Sequence[tf.Tensor | None] | None = None,
    *,
    name: str | None = None,
    names: Sequence[str] | None = None,
    group: int = ALL,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Sends rows of each tensor to each rank, and receives rows from each.

    Args:
      tensors: [n, ...] each; n may differ between ranks.
      splits: for each tensor [R] int32 or int64 (all of one type), the number of rows for each rank. None: the same
        number for each. Rows after their sum are dropped.
      name: the name of the operation, or of the tensor if there is only one.
      names: the names of the tensors, the same on all ranks; they take precedence over `name`.
      group: the group of ranks.

    Returns:
      The received rows, and how many rows came from each rank ([R]).
    """
    nothing = tf.zeros([0], tf.int32)
    given = [nothing if s is None else tf.convert_to_tensor(s) for s in splits or [None] * len(tensors)]
    return _run("alltoall", library.ops.lockstep_named_all_to_all, tensors, name, names, group, {"splits": given})


def barrier(*, name: str | None = None, group: int = ALL) -> tf.Operation | None:
    """Waits until all ranks have called this. Returns the operation in a graph, None eagerly."""
    op = library.ops.lockstep_named_barrier
    return op(**call_arguments("barrier", 1, name, group=group))


def join(*, group: int = ALL) -> tf.Tensor:
    """Takes part in the other ranks' all-reduces with zeros until all have joined; returns the last rank, int32.

    After a cancellation (of a step, or eagerly by Ctrl-C) this rank no longer takes part.
    """

    def op() -> tf.Tensor:
        return library.ops.lockstep_named_join(process_set=group, names=["join"], name="join")

    if not tf.executing_eagerly():
        return op()
    return _interruptible(op, lambda: library.cancel_join(group, "interrupted"))


def _interruptible(run: Callable[[], Any], cancel: Callable[[], None]) -> Any:
    """Returns the result of `run()`, called on another thread: Python handles no signal on a thread in an operation.

    Args:
      run: runs one operation, eagerly.
      cancel: ends the operation if it has begun.
    """
    outcome: list[tuple[Any, BaseException | None]] = []
    ended = threading.Event()

    def body() -> None:
        try:
            # If this thread is in graph mode and new threads are eager, or vice versa, `run` is called here, below.
            if tf.executing_eagerly():
                outcome.append((run(), None))
        except BaseException as error:
            outcome.append((None, error))
        finally:
            ended.set()

    threading.Thread(target=body, name="lockstep join", daemon=True).start()
    try:
        # Thread.join would take a thread for ended if the join itself was interrupted (Python 3.11).
        ended.wait()
    except BaseException:
        while not ended.is_set():
            cancel()
            ended.wait(0.1)
        raise
    if not outcome:
        return run()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def rank_in(group: int = ALL) -> tf.Tensor:
    """Returns this process's rank in the group at the time when the operation runs, int32."""
    return _place(group).rank


def size_of(group: int = ALL) -> tf.Tensor:
    """Returns the number of ranks in the group at the time when the operation runs, int32."""
    return _place(group).size


def _place(group: int) -> Any:
    outputs = library.ops.lockstep_named_place(process_set=group)
    leave_unordered(outputs.rank)
    return outputs


def leave_unordered(output: tf.Tensor) -> None:
    """Exempts an operation from the order in which a `tf.function` runs operations with a state.

    Otherwise, each operation would wait for the previous one, on all ranks.
    """
    operations = getattr(tf.compat.v1.get_default_graph(), "experimental_acd_manager", None)
    if operations is not None and not tf.executing_eagerly():
        operations.run_independently(output.op)


def count(kind: str, group: int = ALL) -> int:
    """Returns how many calls of this kind without a name there were; the next call's name contains this number.

    When all ranks have joined, counting starts again at 0, because ranks that joined early have made fewer calls.
    """
    return library.next_number(group, kind)


def factors(prescale: float, postscale: float) -> dict[str, str]:
    """Returns the attributes of an op for factors; an attribute of type float has too few digits."""
    return {"prescale": repr(float(prescale)), "postscale": repr(float(postscale))}


def names_in_group(name: str, number: int) -> list[str]:
    """Returns the names of the tensors of a call: "name", "name.1", "name.2" and so on.

    The first name is the name of a single tensor, so that ranks with different numbers of tensors are matched and get
    an error.
    """
    return [name, *(f"{name}.{i}" for i in range(1, number))]


def call_arguments(
    kind: str, number: int, name: str | None = None, names: Sequence[str] | None = None, group: int = ALL
) -> dict[str, Any]:
    """Returns the arguments of an op that give the group of ranks and the names of its tensors.

    Args:
      kind: the kind of the collective, such as "allreduce".
      number: the number of tensors.
      name: the name of the operation, or of the tensor if there is only one.
      names: the names of the tensors; they take precedence over `name`.
      group: the group of ranks.
    """
    return {"process_set": group, "name": name or kind, **_names(kind, number, name, names)}


def _names(kind: str, number: int, name: str | None, names: Sequence[str] | None) -> dict[str, Any]:
    if not tf.executing_eagerly():
        # Without names, the node's name is used, which is known only after functions have been inlined.
        return {"names": [""] * number if names is None else list(names), "called": []}
        # TensorFlow creates and keeps a kernel for each value of the attributes. So names are an input, or numbers.
    if names is None:
        if name is None:
            return {"names": [kind] * number, "numbered": True, "called": []}
        names = names_in_group(name, number)
    return {"names": [""] * number, "called": [tf.constant(list(names))]}


_OPERATIONS = {
    "allreduce": "LockstepNamedAllReduce",
    "reducescatter": "LockstepNamedReduceScatter",
    "allgather": "LockstepNamedAllGather",
    "broadcast": "LockstepNamedBroadcast",
    "alltoall": "LockstepNamedAllToAll",
}


def as_tensors(
    kind: str, values: Sequence[Any], name: str | None = None, names: Sequence[str] | None = None
) -> list[tf.Tensor]:
    """Returns values as tensors that a collective takes.

    Args:
      kind: the kind of the collective, such as "allreduce".
      values: values that `tf.convert_to_tensor` takes.
      name: the name of the operation; None: errors call variables by their own names.
      names: the names of the tensors; they take precedence over `name`.

    Raises:
      TypeError: a value is ragged or sparse, or of a type that cannot be sent; the message names it.
    """
    known: Sequence[str | None] = [None] * len(values)
    if names is not None:
        known = names
    elif name is not None:
        known = names_in_group(name, len(values))
    return exchangeable.as_tensors(kind, _OPERATIONS[kind], values, known)


def _run(
    kind: str,
    op: Any,
    tensors: Sequence[tf.Tensor],
    name: str | None,
    names: Sequence[str] | None,
    group: int,
    arguments: dict[str, Any],
) -> Any:
    if not tensors:
        return ([], []) if kind == "alltoall" else []
    tensors = as_tensors(kind, tensors, name, names)
    outputs = op(tensors, **call_arguments(kind, len(tensors), name, names, group), **arguments)
    leave_unordered(tf.nest.flatten(outputs)[0])
    return (list(outputs.results), list(outputs.received)) if kind == "alltoall" else list(outputs)
