"""Horovod's API for Keras: `import horovod.keras as hvd`, with the `keras` that is installed: 2 or 3."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import keras

from horovod import _keras as _impl
from horovod._keras import (
    PartialDistributedOptimizer,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.keras import callbacks
from horovod.tensorflow import (
    Adasum,
    Average,
    Compression,
    Sum,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
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
    "load_model",
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


def __getattr__(name: str) -> Any:
    # Elastic jobs, when they are asked for.
    if name == "elastic":
        return importlib.import_module("horovod.keras.elastic")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "elastic"})


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer of Keras that exchanges gradients between ranks before it applies them.

    In `fit`, and in a loop of one's own with `apply_gradients`; a gradient of `hvd.DistributedGradientTape` is not
    exchanged again.

    Args:
      optimizer: of Keras 3, or of Keras 2, legacy or not. The new one is made of its config, as of a subclass of the
        same name; with state of its own it hands that over.
      name: begins the names of what is exchanged; default "Distributed" and the optimizer's class.
      device_dense: as of `horovod.tensorflow.DistributedOptimizer`, like all that follow.
      device_sparse: likewise.
      compression: likewise.
      sparse_as_dense: likewise.
      gradient_predivide_factor: likewise.
      op: `hvd.Average` or `hvd.Sum`.
      num_groups: as there.
      groups: likewise.
      backward_passes_per_step: likewise.
      average_aggregated_gradients: likewise.
      process_set: likewise.
      scale_local_gradients: likewise.

    Raises:
      ValueError: another `op`, or arguments that don't go together.
    """
    return _impl.make_optimizer(
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


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """A saved model of Keras whose optimizer exchanges gradients, with the state that was saved.

    Args:
      filepath: what `keras.models.load_model` takes.
      custom_optimizers: classes of optimizers that are not Keras' own.
      custom_objects: as there. An optimizer that they make exchanging stays as it is.
      compression: as of `DistributedOptimizer`.
      legacy_opts: not needed: the optimizer is of the class that was saved.
    """

    def wrap(optimizer: Any) -> Any:
        return DistributedOptimizer(optimizer, compression=compression)

    return _impl.load_model(keras, wrap, filepath, custom_optimizers, custom_objects)
