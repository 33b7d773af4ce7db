"""Horovod's API for any package of Keras: names that `horovod.keras` and `horovod.tensorflow.keras` share.

`functions_of` adds the functions that are not in `__all__` to a module.
"""
# ruff: noqa: F405  `__all__` has names of `mpi_ops`.

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import Average, Compression, ProcessSet, global_process_set
from horovod.tensorflow.mpi_ops import *  # noqa: F403
from lockstep._src.compat.horovod.keras import optimizers
from lockstep._src.compat.horovod.keras.signatures import function_of
from lockstep._src.compat.horovod.keras.values import evaluate

# Names of both modules. Each adds those that its `keras` makes different.
__all__ = [
    "Average",
    "Compression",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def functions_of(
    module: str, keras: ModuleType, moved: Sequence[str] = (), before: str = ""
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns `load_model` and `DistributedOptimizer` of a module.

    Args:
      module: the name of the module.
      keras: the Keras whose models are loaded.
      moved: parameters of `DistributedOptimizer` that this module has at another place.
      before: the parameter before which they come.
    """
    return (
        function_of(module, load_model, keras=keras),
        function_of(module, DistributedOptimizer, moved, before),
    )


def load_model(
    keras: ModuleType,
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Returns a saved model of Keras whose optimizer exchanges gradients, with the state that was saved.

    XLA cannot compile exchanges, so it never compiles a model of Keras 3 that this function returns.

    Args:
      keras: the Keras of the model.
      filepath: a path, as for `keras.models.load_model`.
      custom_optimizers: classes of optimizers that are not Keras' own.
      custom_objects: as there. If they make an optimizer exchange already, it stays unchanged.
      compression: as for `DistributedOptimizer`.
      legacy_opts: not needed: the optimizer has the class that was saved.
    """
    return optimizers.load_model(keras, filepath, custom_optimizers, custom_objects, compression)


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns an optimizer of Keras that exchanges gradients between ranks before it applies them.

    It exchanges in `fit`, and in a loop of one's own with `apply_gradients`. It does not exchange a gradient of
    `hvd.DistributedGradientTape` again.

    Args:
      optimizer: of Keras 3, or of Keras 2, legacy or not. The new one has its config and, if there is one, its
        state; its class is a subclass of the same name.
      name: begins the names of exchanged tensors; default "Distributed" and the optimizer's class.
      device_dense: as for `horovod.tensorflow.DistributedOptimizer`, like all that follow.
      device_sparse: likewise.
      compression: likewise.
      sparse_as_dense: likewise.
      gradient_predivide_factor: likewise.
      op: `hvd.Average` or `hvd.Sum`.
      backward_passes_per_step: as there.
      average_aggregated_gradients: likewise.
      num_groups: likewise.
      groups: likewise.
      process_set: likewise.
      scale_local_gradients: likewise.

    Raises:
      ValueError: another `op`, or arguments that don't go together.
    """
    return optimizers.make_optimizer(
        optimizer,
        name,
        op,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns what `DistributedOptimizer` does, but never exchanges gradients of the weights of `local_layers`.

    Args:
      optimizer: as for `DistributedOptimizer`, like all others.
      name: likewise.
      device_dense: likewise.
      device_sparse: likewise.
      compression: likewise.
      sparse_as_dense: likewise.
      gradient_predivide_factor: likewise.
      op: likewise.
      backward_passes_per_step: likewise.
      average_aggregated_gradients: likewise.
      groups: likewise.
      process_set: likewise.
      local_layers: a layer of Keras, or several; their weights may be made later.
      scale_local_gradients: likewise.
    """
    return optimizers.make_optimizer(
        optimizer,
        name,
        op,
        local_layers,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def broadcast_global_variables(root_rank: int) -> Any:
    """Gives all global variables the values of one rank, in Keras' session; raises RuntimeError eagerly."""
    return evaluate(hvd.broadcast_global_variables(root_rank))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduces a value over all ranks, at once.

    Args:
      value: fit for `tf.constant`, of one shape on all ranks.
      name: of the tensor.
      average: the old form of `op`: True for Average, False for Sum.
      prescale_factor: factor before the reduction.
      postscale_factor: factor after it.
      op: one of Horovod's; Average by default.
      compression: how values travel; see `Compression`.

    Returns:
      A tensor; in a graph, the session's result.
    """
    reduced = hvd.allreduce(
        tf.constant(value),
        average=average,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=op,
        compression=compression,
    )
    return evaluate(reduced)


def allgather(value: Any, name: str | None = None) -> Any:  # type: ignore[no-redef]
    """Returns the rows of all ranks, in the order of ranks, at once; see `allreduce`."""
    return evaluate(hvd.allgather(tf.constant(value), name=name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:  # type: ignore[no-redef]
    """Returns the value of one rank, at once; see `allreduce`."""
    return evaluate(hvd.broadcast(tf.constant(value), root_rank, name=name))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Returns this rank's rows of the reduced value, at once; see `allreduce`."""
    return evaluate(hvd.reducescatter(tf.constant(value), name=name, op=op))
