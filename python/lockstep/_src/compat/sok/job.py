"""The job of a program of SOK: how it joins, its place there, and the collectives of `sok.communication`.

A program calls `hvd.init()` and then `sok.init()`. Ranks mean the same as in Horovod: a process is a rank, and
stands for one of SOK's GPUs. Lookups do not go through Horovod's lanes. They are this library's grouped exchanges,
which need ranks in the same order.

A program in a scope of this library needs no Horovod (`join_scope`): the collectives, too, are then the scope's.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lockstep._src.collectives import named_job, ordered
from lockstep._src.compat.horovod import collectives
from lockstep._src.compat.horovod import job as horovod_job
from lockstep._src.compat.horovod.collectives import AVERAGE, MAX, MIN, REDUCTIONS, SUM
from lockstep._src.compat.horovod.process_sets import global_process_set
from lockstep._src.engine.context import context

_REDUCTIONS = {"sum": SUM, "average": AVERAGE, "max": MAX, "min": MIN}
_TOOLS = ("horovod", "single")
_SCOPE = "scope"
_tool: str | None = None


def set_comm_tool(tool: str) -> None:
    """Chooses the communication, once in a process; "horovod" joins the job; see `communication.set_comm_tool`."""
    global _tool
    if _tool not in (None, _SCOPE):
        raise RuntimeError("[SOK INFO] Communication tool cannot be set more than once")
    if tool not in _TOOLS:
        raise ValueError(f"comm_tool: got {tool!r}, wanted 'horovod', or 'single' for a process by itself")
    if tool == "horovod":
        # Does nothing after `hvd.init`. Horovod's optimizers need more than the job itself.
        horovod_job.init(None, None)
        if (named_job.rank(), named_job.size()) != (context.rank, context.world_size):
            raise ValueError(
                f"sok.init: hvd.init made this process rank {named_job.rank()} of {named_job.size()}, wanted rank "
                f"{context.rank} of {context.world_size}; tables need all ranks of the launcher in their order"
            )
        context.ensure_initialized()
    _tool = tool


def join_scope() -> None:
    """Makes the workers of this library's scopes the ranks, if the communication was not chosen. Connects nothing."""
    global _tool
    _tool = _tool or _SCOPE


def is_started() -> bool:
    """Returns whether the communication was chosen."""
    return _tool is not None


def is_shared() -> bool:
    """Returns whether tables are on several ranks."""
    return _tool not in (None, "single") and context.world_size > 1


def check_started() -> None:
    """Raises RuntimeError if the communication was not chosen."""
    if _tool is None:
        raise RuntimeError("[SOK INFO] Communication tool is not set. Did you forget to call sok.init()?")


def rank() -> int:
    """Returns this process's rank."""
    check_started()
    return 0 if _tool == "single" else context.rank


def num_ranks() -> int:
    """Returns the number of ranks."""
    check_started()
    return 1 if _tool == "single" else context.world_size


def local_rank() -> int:
    """Returns this process's rank among the ranks of its host."""
    check_started()
    return 0 if _tool == "single" else context.local_rank


def alltoall(tensor: Any, splits: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends `splits[r]` rows to each rank r; see `communication.alltoall`."""
    check_started()
    if _tool == "single":
        return tf.identity(tensor), tf.identity(splits)
    if _tool == _SCOPE:
        received, received_splits = ordered.alltoall(tf.convert_to_tensor(tensor), tf.convert_to_tensor(splits))
        return received, tf.cast(received_splits, tf.int32)
    return collectives.alltoall(tensor, splits, None, False, global_process_set)


def allreduce(tensor: Any, op: str | int) -> tf.Tensor:
    """Reduces a tensor over the ranks; see `communication.allreduce`."""
    check_started()
    number = _REDUCTIONS.get(op) if isinstance(op, str) else op
    if number is None or number not in _REDUCTIONS.values():
        raise ValueError(f"op: got {op!r}, wanted {', '.join(map(repr, _REDUCTIONS))}")
    if _tool == "single":
        return tf.identity(tensor)
    if _tool == _SCOPE:
        return ordered.allreduce(tf.convert_to_tensor(tensor), op=REDUCTIONS[number])
    return collectives.reduce("allreduce", [tensor], None, number, 1.0, 1.0, False, global_process_set)[0]


def allgather(tensor: Any) -> tf.Tensor:
    """Returns the rows of all ranks, in the order of ranks."""
    check_started()
    if _tool == "single":
        return tf.identity(tensor)
    if _tool == _SCOPE:
        return ordered.allgather(tf.convert_to_tensor(tensor))
    return collectives.allgather([tensor], None, False, global_process_set)[0]


def broadcast(tensor: Any, root: int) -> tf.Tensor:
    """Returns the tensor of the rank `root`."""
    check_started()
    if _tool == "single":
        return tf.identity(tensor)
    if _tool == _SCOPE:
        return ordered.broadcast(tf.convert_to_tensor(tensor), root)
    return collectives.broadcast([tensor], root, None, False, global_process_set)[0]
