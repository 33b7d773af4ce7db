"""Collectives of dense tensors, matched by name, with Horovod's names of tensors and its gradients.

Each takes several tensors, which travel all or none, and returns as many. `reductions` adds compression and slices.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.compat.horovod import job
from lockstep._src.compat.horovod.membership import root_in, taking_part
from lockstep._src.compat.horovod.process_sets import ProcessSet

# Values of Horovod's `op`, and the reductions that they stand for.
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)
REDUCTIONS = {AVERAGE: "mean", SUM: "sum", ADASUM: "adasum", MIN: "min", MAX: "max", PRODUCT: "product"}


def reduction_of(op: int) -> str:
    """Returns the reduction that a value of `op` stands for; raises ValueError for another value."""
    if op not in REDUCTIONS:
        raise ValueError(f"op: got {op!r}, wanted one of hvd.Average, Sum, Adasum, Min, Max, Product")
    return REDUCTIONS[op]


def reduce(
    kind: str,
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    ignore_name_scope: bool,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    """Returns tensors reduced over the ranks ("allreduce"), or this rank's rows of them ("reducescatter")."""
    reduction = reduction_of(op)
    # Horovod's convention for shares of rows: gathered gradients, times the number of ranks for a sum.
    options = {"gradient": "times"} if kind == "reducescatter" else {}
    with _call(kind, tensors, name, ignore_name_scope, process_set) as (tensors, where):
        run = getattr(named, kind)
        return run(tensors, reduction, prescale=prescale_factor, postscale=postscale_factor, **options, **where)


def allgather(
    tensors: Sequence[Any], name: str | None, ignore_name_scope: bool, process_set: ProcessSet
) -> list[tf.Tensor]:
    """Returns the rows of all ranks, in the order of ranks."""
    with _call("allgather", tensors, name, ignore_name_scope, process_set) as (tensors, where):
        return named.allgather(tensors, **where, gradient="mean")


def broadcast(
    tensors: Sequence[Any], root_rank: int, name: str | None, ignore_name_scope: bool, process_set: ProcessSet
) -> list[tf.Tensor]:
    """Returns the tensors of the rank `root_rank`, which counts among all ranks of the job."""
    with _call("broadcast", tensors, name, ignore_name_scope, process_set) as (tensors, where):
        what = " ".join(["broadcast", *([name] if name else [tensor.dtype.name for tensor in tensors[:1]])])
        with root_in(process_set, root_rank, what) as root:
            return named.broadcast(tensors, root, **where, gradient="mean")


def alltoall(
    tensor: Any, splits: Any, name: str | None, ignore_name_scope: bool, process_set: ProcessSet
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Returns the rows that came for this rank, in the order of ranks; with `splits` also how many came from each."""
    with _call("alltoall", [tensor], name, ignore_name_scope, process_set) as (tensors, where):
        (result,), (received,) = named.alltoall(tensors, [splits], **where)
    return result if splits is None else (result, received)


def barrier(process_set: ProcessSet, name: str | None) -> tf.Operation | None:
    """Waits for all ranks of a set; returns an operation that does so in a graph."""
    with taking_part("barrier", process_set) as group:
        return named.barrier(name=name, group=group)


def join() -> tf.Tensor:
    """Joins, and returns the rank that joined last; raises ValueError before `init`."""
    job.rank()
    return named.join()


@contextlib.contextmanager
def _call(
    kind: str, tensors: Sequence[Any], name: str | None, ignore_name_scope: bool, process_set: ProcessSet
) -> Iterator[tuple[list[tf.Tensor], dict[str, Any]]]:
    """Yields what a collective of `named` takes, which the caller runs inside: tensors, and their names and group."""
    tensors = named.as_tensors(kind, tensors, name)
    with taking_part(kind, process_set) as group:
        yield tensors, {**_naming(kind, tensors, name, ignore_name_scope), "group": group}


def _naming(kind: str, tensors: Sequence[Any], name: str | None, ignore_name_scope: bool) -> dict[str, Any]:
    """Returns the arguments of `named`'s collectives that give tensors Horovod's names."""
    if tf.executing_eagerly() or not tensors:
        return {"name": name}
    if name is None:
        title = kind.capitalize() if len(tensors) == 1 or kind == "broadcast" else f"Grouped{kind.capitalize()}"
        ends = dict.fromkeys(tensor.name for tensor in (tensors[0], tensors[-1]))
        name = "_".join([f"Horovod{title}", *(re.sub("[^a-zA-Z0-9_]", "_", end) for end in ends)])
    name = re.sub("[^a-zA-Z0-9_.\\-/]", "_", name)
    if not ignore_name_scope:
        return {"name": name}
    # The operation's name without the scope.
    last = tf.compat.v1.get_default_graph().unique_name(name, mark_as_used=False).rpartition("/")[2]
    return {"name": name, "names": named.names_in_group(last, len(tensors))}
