"""Horovod's API for Keras: `import horovod.keras as hvd`, with the `keras` that is installed: 2 or 3."""

from __future__ import annotations

from typing import Any

import keras

from horovod import _keras
from horovod._keras import *  # noqa: F403
from horovod._keras import Average, Compression, ProcessSet, global_process_set
from horovod.keras import callbacks
from horovod.tensorflow import Adasum
from lockstep._src.compat.horovod.keras import optimizers
from lockstep._src.compat.lazy import lazy_names

__all__ = [
    *_keras.__all__,
    "Adasum",
    "DistributedOptimizer",
    "callbacks",
    "load_model",
]

load_model = _keras.make_load_model(keras)
__getattr__, __dir__ = lazy_names(__name__, {"elastic": "horovod.keras.elastic"})


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
      num_groups: as there.
      groups: likewise.
      backward_passes_per_step: likewise.
      average_aggregated_gradients: likewise.
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
