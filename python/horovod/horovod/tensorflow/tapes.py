"""`hvd.DistributedGradientTape` and `hvd.PartialDistributedGradientTape`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.exchange import layers_of, make_exchange
from horovod.tensorflow.mpi_ops import Average
from lockstep.data_parallel import make_exchanging_tape, make_variables_callable


@tf.autograph.experimental.do_not_convert
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
    """A tape that has recorded what `gradtape` has, and whose `gradient` exchanges what it gives.

    Args:
      gradtape: a tape, whose `with` block may have ended.
      device_dense: as of `hvd.DistributedOptimizer`, like all that follow.
      device_sparse: likewise.
      compression: likewise.
      sparse_as_dense: likewise.
      op: likewise, or any other of Horovod's; Min, Max, Product and Adasum of dense gradients.
      gradient_predivide_factor: likewise.
      num_groups: likewise.
      groups: likewise.
      process_set: likewise.
      scale_local_gradients: likewise, of what `register_local_source` had.

    Returns:
      A tape with `register_local_source(source)`, `get_local_and_global_gradients(target, sources)`, which gives
      pairs of a source and its gradient, and `gradient(target, sources, output_gradients, use_generic_names)`.
      `jacobian` and `batch_jacobian` exchange nothing.
    """
    exchange = make_exchange(
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
    # Programs with a tape say `hvd.broadcast_variables(optimizer.variables(), root_rank=0)` next.
    make_variables_callable()
    return make_exchanging_tape(gradtape, exchange, "DistributedGradientTape")


@tf.autograph.experimental.do_not_convert
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
    """As `hvd.DistributedGradientTape`, but gradients of the weights of `local_layers` are not exchanged.

    Args:
      gradtape: as there, like all others.
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
    layers = layers_of(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in layers:
        tape.register_local_layer(layer)
    return tape
