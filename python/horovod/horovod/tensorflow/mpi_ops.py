"""Horovod's collectives by name, one operation each; `collectives` adds sparse tensors and compression.

`name` is the tensor's name, the same on all ranks. A graph makes names unique and puts the scope's name before them,
but not with `ignore_name_scope`. Without a name, tensors are named after the given one, eagerly after the number of the
call.

If ranks differ in type, shape or arguments, all get FailedPreconditionError with the tensor's name and what each rank
has. An argument that is wrong on one rank gives InvalidArgumentError on all ranks, with the same facts. A process that
is not in `process_set` gets InvalidArgumentError when the operation runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.basics import HorovodBasics
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.util import get_average_backwards_compatibility_fun, num_rank_is_power_2
from horovod.tensorflow.util import without_autograph
from lockstep._src.compat.horovod import collectives, place_ops
from lockstep._src.compat.horovod import variables as of_ranks

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
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


@without_autograph
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns the number of ranks of a process set, int32, when the operation runs."""
    return place_ops.int_at_run_time(lambda: place_ops.size_of(process_set_id), name)


@without_autograph
def rank_op(name: str | None = None) -> tf.Tensor:
    """Returns this process's rank, int32, when the operation runs."""
    return place_ops.int_at_run_time(rank, name)


@without_autograph
def local_size_op(name: str | None = None) -> tf.Tensor:
    """Returns the number of processes on this host, int32, when the operation runs."""
    return place_ops.int_at_run_time(local_size, name)


@without_autograph
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Returns this process's rank on its host, int32, when the operation runs."""
    return place_ops.int_at_run_time(local_rank, name)


@without_autograph
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns whether this process is in a process set, int32, when the operation runs.

    1 if it is, otherwise 0; -1 before `init`, -3 if there is no such set.
    """
    return place_ops.int_at_run_time(lambda: place_ops.included(process_set_id), name)


@without_autograph
def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Reduces dense tensors over the ranks, all or none."""
    return collectives.reduce(
        "allreduce", tensors, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
    )


@without_autograph
def _allreduce(tensor: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
    """Reduces one dense tensor; takes the arguments of `_grouped_allreduce`."""
    return _grouped_allreduce([tensor], *args, **kwargs)[0]


@without_autograph
def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduces dense tensors over the ranks and returns this rank's rows, all or none."""
    return collectives.reduce(
        "reducescatter", tensors, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
    )


@without_autograph
def _reducescatter(tensor: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
    """Reduces one dense tensor; takes the arguments of `_grouped_reducescatter`."""
    return _grouped_reducescatter([tensor], *args, **kwargs)[0]


@without_autograph
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Returns the rows of all ranks, in the order of ranks, of several tensors, all or none.

    Args:
      tensors: [n, ...] each; n may differ over ranks.
      name: of the operation.
      ignore_name_scope: the scope is no part of the name.
      process_set: the set whose ranks take part.

    Returns:
      [sum of n over ranks, ...] each. The gradient is the mean of all ranks' gradients of this rank's rows.
    """
    return collectives.allgather(tensors, name, ignore_name_scope, process_set)


@without_autograph
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns the rows of all ranks of one tensor; see `grouped_allgather`."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


@without_autograph
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns the tensor of the rank `root_rank`, on all ranks.

    Args:
      tensor: of the same shape on all ranks.
      root_rank: among all ranks of the job, also for a process set.
      name: of the tensor.
      ignore_name_scope: the scope is no part of the name.
      process_set: the set whose ranks take part.

    Returns:
      Of the tensor's shape. The gradient is the mean of all ranks' on the root, and zero elsewhere.

    Raises:
      tf.errors.InvalidArgumentError: the root is not in the set.
    """
    return collectives.broadcast([tensor], root_rank, name, ignore_name_scope, process_set)[0]


@without_autograph
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
      ValueError: some of them are resources and some are not, or one is not a variable.
    """
    return of_ranks.broadcast_in_place(variables, root_rank, name, process_set)


@without_autograph
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
      splits: [R] int32 or int64, how many rows go to each rank; the rows behind them are dropped. Without it, as many
        go to each, and n has to be a multiple of R.
      name: of the tensor.
      ignore_name_scope: the scope is no part of the name.
      process_set: the set whose ranks take part.

    Returns:
      The received rows, in the order of ranks; with `splits` also how many came from each, [R] of their type. Gradients
      travel the way back, and are not averaged.
    """
    return collectives.alltoall(tensor, splits, name, ignore_name_scope, process_set)


@without_autograph
def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> tf.Operation | None:
    """Waits until all ranks have called it. An operation in a graph; eagerly None, when it has ended."""
    return collectives.barrier(process_set, name)


@without_autograph
def join() -> tf.Tensor:
    """Declares that this rank has no more data: it takes part in the others' allreduces until all have joined.

    Until then a reduction covers the data of the ranks that have not joined; an average is their sum, divided by
    all ranks, as in Horovod. Other collectives than allreduce are an error then, as is Adasum.

    Returns:
      int32, the rank that joined last.
    """
    return collectives.join()
