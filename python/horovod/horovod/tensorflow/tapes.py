"""`hvd.DistributedGradientTape` and `hvd.PartialDistributedGradientTape`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import Average
from horovod.tensorflow.util import without_autograph
from lockstep._src.compat.horovod import gradients


@without_autograph
def DistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a tape with the records of `gradtape`, whose `gradient` exchanges its results.

    Args:
      gradtape: a tape, whose `with` block may have ended.
      device_dense: as for `hvd.DistributedOptimizer`, like all that follow.
      device_sparse: likewise.
      compression: likewise.
      sparse_as_dense: likewise.
      op: likewise, or any other of Horovod's; Min, Max, Product and Adasum for dense gradients.
      gradient_predivide_factor: likewise.
      num_groups: likewise.
      groups: likewise.
      process_set: likewise.
      scale_local_gradients: likewise, for variables that `register_local_source` had.

    Returns:
      A tape with `register_local_source(source)`, `get_local_and_global_gradients(target, sources)`, which returns
      pairs of a source and its gradient, and `gradient(target, sources, output_gradients, use_generic_names)`.
      `jacobian` and `batch_jacobian` exchange nothing.
    """
    return gradients.make_tape(
        gradtape,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        compression=compression,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        sparse_as_dense=sparse_as_dense,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )


@without_autograph
def PartialDistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns what `hvd.DistributedGradientTape` does, but never exchanges gradients of the weights of `local_layers`.

    Args:
      gradtape: as for `hvd.DistributedGradientTape`, like all others.
      device_dense: likewise.
      device_sparse: likewise.
      compression: likewise.
      sparse_as_dense: likewise.
      op: likewise.
      gradient_predivide_factor: likewise.
      num_groups: likewise.
      groups: likewise.
      process_set: likewise.
      local_layers: a layer of Keras, or several; their weights may be made later.
      scale_local_gradients: likewise.
    """
    return gradients.make_tape(
        gradtape,
        local_layers,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        compression=compression,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        sparse_as_dense=sparse_as_dense,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
