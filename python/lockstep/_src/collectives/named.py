"""Collectives that are matched by name, in whatever order each rank asks for them: what Horovod's API stands on.

Nothing has to be the same on all ranks but the names: graphs may differ, and the order of calls. Small tensors that are
ready together travel together. (The collectives of `collectives` need no words about their order, and are faster; they
are for graphs that all ranks have in common.)

Names. Tensors are called as `names` says, or, of a graph's operation, as the operation is, which TensorFlow makes from
`name`. Eagerly, where operations have none, `name` itself; without it, the n-th call of a kind is called "allreduce.n".
R is the number of ranks of the group.

Gradients, by `gradient`: "sum", those of the sum of all ranks' losses (the transpose of the op); "mean", of their mean,
R times less; "times", R times the former. Horovod's documents mix the three.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import exchangeable
from lockstep._src.engine import library
from lockstep._src.engine.cluster import Cluster
from lockstep._src.engine.context import context, meeting_of

REDUCTIONS = ("sum", "mean", "min", "max", "product", "adasum")
ALL = 0  # the group of all ranks

_secrets: dict[int, str] = {}  # by group, of those that have a lane


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
    """Meets the ranks of a group; every rank of it calls this.

    Args:
      group: its number; `ALL` for all ranks of the job.
      rank: of this process in the group; its rank in the job by default.
      size: of the group; the job's by default.
      rendezvous: "host:port" where the group's rank 0 waits for the others; the job's by default.
      listener: of rank 0, a socket that listens there already, as of `socket.create_server((host, 0))`: a port that is
        picked at run time stays its own. The caller closes it afterwards.
      label: what errors and warnings call the group, the same on all its ranks: "process set 2 (ranks 1 and 3)". Ranks
        in them are those in the group.
      fusion_bytes: tensors that are ready together travel together up to so many bytes; 0: each alone.
      stall_warning_s: after so long rank 0 warns, on stderr, of a tensor that some ranks have not asked for; 0: never.
      stall_timeout_s: after so long such a tensor fails, on the ranks that wait for it; 0: never.

    Raises:
      ValueError: the environment is incomplete.
      tf.errors.FailedPreconditionError: the group has a lane already.
      tf.errors.OpError: the ranks did not meet; says which are missing.
    """
    # As the environment is now: an elastic job's may have changed since this process was in another one.
    cluster, options = Cluster.from_environment(os.environ), context.options
    cluster.check_can_connect()
    meeting = meeting_of(cluster, options)
    library.open_lane(
        group,
        dataclasses.replace(
            meeting,
            rank=meeting.rank if rank is None else rank,
            size=meeting.size if size is None else size,
            rendezvous=meeting.rendezvous if rendezvous is None else rendezvous,
            listen=meeting.listen if rendezvous is None else "",
            listener=-1 if listener is None else listener.fileno(),
        ),
        fusion_bytes=fusion_bytes,
        named_stall_warning_s=stall_warning_s,
        named_stall_timeout_s=stall_timeout_s,
        label=label,
    )
    _secrets[group] = meeting.secret


def close_lane(group: int = ALL, how: str = "") -> None:
    """Leaves a group: what this rank waits for in it ends with CancelledError, on the others with InternalError.

    Others that wait for this rank hear `how` it left, a sentence.
    """
    library.close_lane(group, how)


def secret_of(group: int = ALL) -> str:
    """Returns the secret by which the ranks of a group know each other; empty without a lane or another rank."""
    return _secrets.get(group, "")


def start_timeline(path: str, mark_cycles: bool = False, group: int = ALL) -> None:
    """Has rank 0 write down what becomes of each tensor, for viewers of Chrome traces (core/comm/named/timeline.h).

    Args:
      path: of the file, written anew; JSON. On other ranks nothing is written.
      mark_cycles: also marks each time that rank 0 had something to put into the order.
      group: whose lane; it has to be open. The file ends with the lane, or at `stop_timeline`.

    Raises:
      tf.errors.FailedPreconditionError: there is no lane.
      tf.errors.InvalidArgumentError: the file cannot be written.
    """
    library.start_timeline(group, path, mark_cycles)


def stop_timeline(group: int = ALL) -> None:
    """Ends the file. Nothing where there is none."""
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
    """Gives postscale * reduction of (prescale * tensor). All are reduced, or none.

    Args:
      tensors: of any types; of the same types and shapes on all ranks.
      reduction: one of `REDUCTIONS`. The mean of integers is cut off; "adasum" is for floating-point types.
      prescale: factor before the reduction.
      postscale: factor behind it.
      name: of the operation, or of the tensor where there is only one.
      names: of the tensors, the same on all ranks; before `name`.
      group: of ranks.

    Raises:
      TypeError: a tensor is ragged or sparse, or of a type that does not travel; names it.
      tf.errors.FailedPreconditionError: the ranks differ in shape, type, reduction or factors; on every rank, with what
        each of them has. There is no lane.
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
    """As `allreduce`, but each rank gets its share of the rows: the first ranks one more where they don't share."""
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
    """The rows of all ranks, in the order of ranks; how many they are may differ, the other dimensions must not."""
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
    """The tensors of `root`, a rank in the group, on all ranks."""
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
    """Sends each rank some rows of each tensor, and receives some from each.

    Args:
      tensors: [n, ...] each; n may differ over ranks.
      splits: of each tensor [R] int32 or int64 (all of one type), rows for each rank, or None: as many for each. Rows
        behind their sum are dropped.
      name: of the operation, or of the tensor where there is only one.
      names: of the tensors, the same on all ranks; before `name`.
      group: of ranks.

    Returns:
      What came, and how many rows from each rank ([R]).
    """
    nothing = tf.zeros([0], tf.int32)
    given = [nothing if s is None else tf.convert_to_tensor(s) for s in splits or [None] * len(tensors)]
    return _run("alltoall", library.ops.lockstep_named_all_to_all, tensors, name, names, group, {"splits": given})


def barrier(*, name: str | None = None, group: int = ALL) -> tf.Operation | None:
    """Ends when all ranks have come here. The operation in a graph, None eagerly."""
    op = library.ops.lockstep_named_barrier
    return op(**call_arguments("barrier", 1, name, group=group))


def join(*, group: int = ALL) -> tf.Tensor:
    """Takes part in the other ranks' all-reduces with zeros until all have joined. int32: the rank that came last.

    What is cancelled (a step; eagerly by Ctrl-C) is back, and no longer takes part.
    """

    def op() -> tf.Tensor:
        return library.ops.lockstep_named_join(process_set=group, names=["join"], name="join")

    if not tf.executing_eagerly():
        return op()
    return _interruptible(op, lambda: library.cancel_join(group, "interrupted"))


def _interruptible(run: Callable[[], Any], cancel: Callable[[], None]) -> Any:
    """What `run()` gives, on a thread of its own: Python hears of no signal on one that is inside of an operation.

    Args:
      run: does one operation, eagerly.
      cancel: ends it where it has begun.
    """
    outcome: list[tuple[Any, BaseException | None]] = []
    ended = threading.Event()

    def body() -> None:
        try:
            # Where this thread's mode is not that of new ones, it runs there.
            if tf.executing_eagerly():
                outcome.append((run(), None))
        except BaseException as error:
            outcome.append((None, error))
        finally:
            ended.set()

    threading.Thread(target=body, name="lockstep join", daemon=True).start()
    try:
        # Not by Thread.join, which takes a thread for ended where it was interrupted itself (Python 3.11).
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
    """int32: this process's rank in the group, as it is when the operation runs."""
    return _place(group).rank


def size_of(group: int = ALL) -> tf.Tensor:
    """int32: the number of ranks in the group, as it is when the operation runs."""
    return _place(group).size


def _place(group: int) -> Any:
    outputs = library.ops.lockstep_named_place(process_set=group)
    leave_unordered(outputs.rank)
    return outputs


def leave_unordered(output: tf.Tensor) -> None:
    """Takes an operation out of the order into which a `tf.function` puts those with a state.

    Each would wait for the one before, on all ranks.
    """
    operations = getattr(tf.compat.v1.get_default_graph(), "experimental_acd_manager", None)
    if operations is not None and not tf.executing_eagerly():
        operations.run_independently(output.op)


def count(kind: str, group: int = ALL) -> int:
    """How many calls without a name there were of this kind: the number that makes a name of the next one.

    Counted from 0 anew when all ranks have joined, as those that joined early have made fewer calls.
    """
    return library.next_number(group, kind)


def factors(prescale: float, postscale: float) -> dict[str, str]:
    """Returns the attributes of an op for factors; an attribute of type float has too few digits."""
    return {"prescale": repr(float(prescale)), "postscale": repr(float(postscale))}


def names_in_group(name: str, number: int) -> list[str]:
    """What the tensors of a call are called: "name", "name.1", "name.2" and so on.

    The first is called as one alone would be, so that ranks that bring different numbers of them meet, and are told.
    """
    return [name, *(f"{name}.{i}" for i in range(1, number))]


def call_arguments(
    kind: str, number: int, name: str | None = None, names: Sequence[str] | None = None, group: int = ALL
) -> dict[str, Any]:
    """Returns the arguments of an op that say which ranks call it, and what its tensors are called.

    Args:
      kind: of the collective, such as "allreduce".
      number: of tensors.
      name: of the operation, or of the tensor where there is only one.
      names: of the tensors; before `name`.
      group: of ranks.
    """
    return {"process_set": group, "name": name or kind, **_names(kind, number, name, names)}


def _names(kind: str, number: int, name: str | None, names: Sequence[str] | None) -> dict[str, Any]:
    if not tf.executing_eagerly():
        # Without names, the node's, which is known when functions have been put in place.
        return {"names": [""] * number if names is None else list(names), "called": []}
    # TensorFlow makes, and keeps, a kernel for each value of the attributes: names are an input, or the lane counts.
    if names is None and name is None:
        return {"names": [kind] * number, "numbered": True, "called": []}
    if names is None:
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
      kind: of the collective, such as "allreduce".
      values: what `tf.convert_to_tensor` takes.
      name: of the operation; None: variables are called by their own names in errors.
      names: of the tensors; before `name`.

    Raises:
      TypeError: one is ragged or sparse, or of a type that does not travel; names it.
    """
    if names is None:
        names = [None] * len(values) if name is None else names_in_group(name, len(values))
    return exchangeable.as_tensors(kind, _OPERATIONS[kind], values, names)


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
