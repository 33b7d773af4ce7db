"""Horovod's collectives by name, one operation each; `collectives` adds sparse tensors and compression.

What they have in common: `name` is the tensor's name, the same on all ranks, where a graph makes names unique and puts
the scope's name before them (not with `ignore_name_scope`). Without it, tensors are called after the one that is given,
eagerly after the number of the call. Ranks that differ in type, shape or arguments get FailedPreconditionError, and
arguments that are wrong on one rank InvalidArgumentError, on all ranks, with the tensor's name, the ranks and what each
has. A process that is not in `process_set` gets InvalidArgumentError when the operation runs.
"""

from __future__ import annotations

import contextlib
import numbers
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.basics import HorovodBasics
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    number_of,
    remove_process_set,
)
from horovod.common.util import get_average_backwards_compatibility_fun, num_rank_is_power_2
from horovod.tensorflow.place_ops import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from horovod.tensorflow.util import _executing_eagerly, as_it_is
from lockstep import named

_basics = HorovodBasics()

init = _basics.init
shutdown = _basics.shutdown
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
is_initialized = _basics.is_initialized
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
is_homogeneous = _basics.is_homogeneous
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built

Average = _basics.Average
Sum = _basics.Sum
Adasum = _basics.Adasum
Min = _basics.Min
Max = _basics.Max
Product = _basics.Product

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)
check_num_rank_power_of_2 = num_rank_is_power_2

_REDUCTIONS = {Average: "mean", Sum: "sum", Adasum: "adasum", Min: "min", Max: "max", Product: "product"}

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "global_process_set",
    "grouped_allgather",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "remove_process_set",
    "size_op",
]


def _reduction(op: int) -> str:
    if op not in _REDUCTIONS:
        raise ValueError(f"op: got {op!r}, wanted one of hvd.Average, Sum, Adasum, Min, Max, Product")
    return _REDUCTIONS[op]


def _naming(kind: str, tensors: Sequence[Any], name: str | None, ignore_name_scope: bool = False) -> dict[str, Any]:
    """Arguments of `lockstep.named` that give tensors Horovod's names."""
    if _executing_eagerly() or not tensors:
        return {"name": name}
    if name is None:
        ends = dict.fromkeys(tensor.name for tensor in (tensors[0], tensors[-1]))
        name = "_".join([f"Horovod{kind}", *(re.sub("[^a-zA-Z0-9_]", "_", end) for end in ends)])
    name = re.sub("[^a-zA-Z0-9_.\\-/]", "_", name)
    if not ignore_name_scope:
        return {"name": name}
    # As the operation is called, less the scope.
    last = tf.compat.v1.get_default_graph().unique_name(name, mark_as_used=False).rpartition("/")[2]
    return {"name": name, "names": named.names_in_group(last, len(tensors))}


@contextlib.contextmanager
def _taking_part(what: str, process_set: ProcessSet, at_once: bool = False) -> Iterator[int]:
    """The number of a process set, for operations made inside, or run inside where `at_once` is set.

    Raises:
      ValueError: there is no such set.
      tf.errors.InvalidArgumentError: this process is not in it. Of a graph, which may be the same on all ranks, when
        the operation runs.

    """
    group, own = number_of(process_set, what), rank()
    ranks = named.ranks_of(group)
    if own in ranks:
        yield group
        return
    message = f"{what}: rank {own} is not a member of process set {group}, which has the ranks {ranks}"
    if at_once or _executing_eagerly():
        raise tf.errors.InvalidArgumentError(None, None, message)
    with tf.control_dependencies([tf.raw_ops.Assert(condition=False, data=[message])]):
        yield group


@as_it_is
def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Dense tensors, reduced over the ranks; all or none."""
    reduction = _reduction(op)
    factors = {"prescale": prescale_factor, "postscale": postscale_factor}
    kind = "Allreduce" if len(tensors) == 1 else "GroupedAllreduce"

    tensors = named.as_tensors("allreduce", tensors, name)
    with _taking_part("allreduce", process_set) as group:
        naming = _naming(kind, tensors, name, ignore_name_scope)
        return named.allreduce(tensors, reduction, **factors, **naming, group=group)


@as_it_is
def _allreduce(tensor: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
    """One dense tensor; arguments of `_grouped_allreduce`."""
    return _grouped_allreduce([tensor], *args, **kwargs)[0]


@as_it_is
def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Dense tensors, reduced over the ranks, of which each gets its rows."""
    reduction = _reduction(op)
    factors = {"prescale": prescale_factor, "postscale": postscale_factor}
    kind = "Reducescatter" if len(tensors) == 1 else "GroupedReducescatter"

    tensors = named.as_tensors("reducescatter", tensors, name)
    with _taking_part("reducescatter", process_set) as group:
        naming = _naming(kind, tensors, name, ignore_name_scope)
        # Horovod's convention: gathered gradients, times the ranks of a sum.
        return named.reducescatter(tensors, reduction, **factors, **naming, group=group, gradient="times")


@as_it_is
def _reducescatter(tensor: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
    """One dense tensor; arguments of `_grouped_reducescatter`."""
    return _grouped_reducescatter([tensor], *args, **kwargs)[0]


@as_it_is
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """The rows of all ranks, in the order of ranks, of several tensors, all or none.

    Args:
      tensors: [n, ...] each; n may differ over ranks.
      name: of the operation.
      ignore_name_scope: the scope is no part of the name.
      process_set: whose ranks take part.

    Returns:
      [sum of n over ranks, ...] each. The gradient is the mean of all ranks' gradients of this rank's rows.
    """
    kind = "Allgather" if len(tensors) == 1 else "GroupedAllgather"

    tensors = named.as_tensors("allgather", tensors, name)
    with _taking_part("allgather", process_set) as group:
        naming = _naming(kind, tensors, name, ignore_name_scope)
        return named.allgather(tensors, **naming, group=group, gradient="mean")


@as_it_is
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """As `grouped_allgather`, of one tensor."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


@contextlib.contextmanager
def root_in(process_set: ProcessSet, root_rank: int, what: str) -> Iterator[int]:
    """The rank in `process_set` of a rank of the job, as roots are given.

    Of one that is not in the set, a number that is no rank, which the lane refuses on all ranks: those that name
    another root would wait for this rank. What runs inside then ends with an error in the caller's terms.

    Raises:
      ValueError: the root is no integer, or the set is none.
      tf.errors.InvalidArgumentError: inside something ran, and the root is not in the set.
    """
    group = number_of(process_set, what)
    if not isinstance(root_rank, numbers.Integral):
        raise ValueError(f"{what}: root_rank is {root_rank!r}, wanted a rank")
    rank()  # says where there is no job
    ranks = named.ranks_of(group)
    if root_rank in ranks:
        yield ranks.index(root_rank)
        return
    try:
        yield -1 if 0 <= root_rank < len(ranks) else root_rank
    except tf.errors.InvalidArgumentError as error:
        message = f"{what}: root_rank is {root_rank}, wanted one of the ranks {ranks}"
        raise tf.errors.InvalidArgumentError(error.node_def, error.op, message) from None


def _grouped_broadcast(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None,
    ignore_name_scope: bool,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    tensors = named.as_tensors("broadcast", tensors, name)
    what = " ".join(["broadcast", *([name] if name else [tensor.dtype.name for tensor in tensors[:1]])])
    with _taking_part("broadcast", process_set) as group, root_in(process_set, root_rank, what) as root:
        naming = _naming("Broadcast", tensors, name, ignore_name_scope)
        return named.broadcast(tensors, root, **naming, group=group, gradient="mean")


@as_it_is
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The tensor of the rank `root_rank`, on all ranks.

    Args:
      tensor: of the same shape on all ranks.
      root_rank: among all ranks of the job, also for a process set.
      name: of the tensor.
      ignore_name_scope: the scope is no part of the name.
      process_set: whose ranks take part.

    Returns:
      Of the tensor's shape. The gradient is the mean of all ranks' on the root, and zero elsewhere.

    Raises:
      tf.errors.InvalidArgumentError: the root is not in the set.
    """
    return _grouped_broadcast([tensor], root_rank, name, ignore_name_scope, process_set)[0]


def checked_variables(what: str, variables: Iterable[Any]) -> list[Any]:
    """Variables of whatever kind; ValueError, which calls the caller `what`, for what cannot be set."""
    variables = list(variables)
    for variable in variables:
        if not hasattr(variable, "assign"):
            raise ValueError(f"{what}: got {type(variable).__name__}, wanted variables, which can be set")
    return variables


@as_it_is
def broadcast_(
    variables: Sequence[tf.Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gives variables the values that they have on the rank `root_rank`; all or none.

    Returns:
      Their values. In a graph, running those sets the variables.

    Raises:
      ValueError: some of them are resources and some are not, or one is no variable.
    """
    variables = checked_variables("broadcast_", variables)
    if len({hasattr(variable, "handle") for variable in variables}) > 1:
        raise ValueError("broadcast_: some variables are resources and some are references, wanted all of one kind")
    values = _grouped_broadcast(variables, root_rank, name, False, process_set)
    assigned = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
    if _executing_eagerly():
        return values
    with tf.control_dependencies([tf.group(*assigned)]):
        return [tf.identity(value) for value in values]


@as_it_is
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends each rank some rows of the tensor, and receives some from each. R ranks.

    Args:
      tensor: [n, ...]; n may differ over ranks.
      splits: [R] int32 or int64, how many rows go to each rank; what is behind them is dropped. Without it, as many go
        to each, and n has to be a multiple of R.
      name: of the tensor.
      ignore_name_scope: the scope is no part of the name.
      process_set: whose ranks take part.

    Returns:
      What came, in the order of ranks; with `splits` also how many rows came from each, [R] of their type. Gradients go
      the way back, and are not averaged.
    """
    (tensor,) = named.as_tensors("alltoall", [tensor], name)
    with _taking_part("alltoall", process_set) as group:
        naming = _naming("Alltoall", [tensor], name, ignore_name_scope)
        (result,), (received,) = named.alltoall([tensor], [splits], **naming, group=group)
    return result if splits is None else (result, received)


@as_it_is
def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> tf.Operation | None:
    """Ends when all ranks have come here. An operation in a graph; eagerly None, when it has ended."""
    with _taking_part("barrier", process_set) as group:
        return named.barrier(name=name, group=group)


@as_it_is
def join() -> tf.Tensor:
    """Says that this rank has no more data: it takes part in the others' allreduces until all have joined.

    Until then a reduction is that of the data of the ranks that have not joined; an average is their sum, divided by
    all ranks, as in Horovod. Other collectives than allreduce are an error then, as is Adasum.

    Returns:
      int32, the rank that joined last.
    """
    rank()
    return named.join()
