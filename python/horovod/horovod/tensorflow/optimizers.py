"""`hvd.DistributedOptimizer`, for optimizers of TensorFlow 1 and of Keras."""

from __future__ import annotations

from typing import Any

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import Average
from lockstep._src.compat.horovod import gradients


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns an optimizer that exchanges gradients between ranks before it applies them.

    Gradients are exchanged once: where they are computed, or in `apply_gradients` if they come from elsewhere.

    Args:
      optimizer: of `tf.compat.v1.train`, or of Keras 3 or 2. One of TensorFlow 1 is wrapped. One of Keras is copied,
        with its config and state, as an object of a subclass of the same name.
      name: begins the names of exchanged tensors; default "Distributed" and the optimizer's class.
      use_locking: of an optimizer of TensorFlow 1.
      device_dense: where dense gradients are exchanged; "": where TensorFlow likes.
      device_sparse: where `tf.IndexedSlices` are.
      compression: `hvd.Compression.fp16` or `bf16`: gradients, and slices' values, travel in this type.
      sparse_as_dense: slices are made dense, and reduced; otherwise they are gathered unchanged, by rank.
      backward_passes_per_step: gradients are summed over so many passes before they are exchanged and applied. The
        passes before only count (`iterations`, `global_step`). Slices need `sparse_as_dense`.
      op: `hvd.Average` or `hvd.Sum`. With `hvd.Adasum`, for an optimizer of TensorFlow 1, each rank applies its own
        gradients. Adasum then combines the changes of variables, every `backward_passes_per_step` steps.
      gradient_predivide_factor: f: gradients are divided by f before they are summed, and the sum by size/f.
      average_aggregated_gradients: the sum over passes is divided by their number.
      num_groups: an older name of `groups`.
      groups: the number of groups of gradients that travel together, or lists of variables; a variable in no list is a
        group. Without groups, each gradient travels when it is there, and small ones together.
      process_set: the set whose ranks exchange; on others gradients stay their own.
      scale_local_gradients: gradients of variables that `register_local_var` had are not exchanged, but divided by the
        number of ranks. With Adasum they are not divided, because each rank applies its own anyway.

    Returns:
      The optimizer, with `register_local_var(var)`.

    Raises:
      ValueError: another `op`, or arguments that are invalid or don't go together. The optimizer raises it, too, if it
        cannot tell whether gradients have been exchanged, and that makes a difference.
      NotImplementedError: Adasum with a process set.
      TypeError: an invalid compression, process set or optimizer.
    """
    return gradients.make_optimizer(
        optimizer,
        name,
        use_locking,
        op,
        process_set,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        scale_local_gradients=scale_local_gradients,
        sparse_as_dense=sparse_as_dense,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
