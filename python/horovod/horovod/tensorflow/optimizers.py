"""`hvd.DistributedOptimizer`, for optimizers of TensorFlow 1 and of Keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.exchange import REDUCTIONS, make_exchange
from horovod.tensorflow.mpi_ops import Adasum, Average, Max, Min, Product
from lockstep.data_parallel import AdasumOptimizer, ExchangingOptimizer, make_exchanging_keras_optimizer


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
    """An optimizer that exchanges gradients between ranks before it applies them.

    Gradients are exchanged once, where they are computed, or in `apply_gradients` where they come from elsewhere.

    Args:
      optimizer: of `tf.compat.v1.train`, or of Keras 3 or 2. One of TensorFlow 1 is wrapped. One of Keras is made anew,
        of its config, as of a subclass of the same name; with state of its own it hands that over.
      name: begins the names of what is exchanged; default "Distributed" and the optimizer's class.
      use_locking: of an optimizer of TensorFlow 1.
      device_dense: where dense gradients are exchanged; "": where TensorFlow likes.
      device_sparse: where `tf.IndexedSlices` are.
      compression: `hvd.Compression.fp16` or `bf16`: gradients travel in this type. Slices' values as well.
      sparse_as_dense: slices are made dense, and reduced; otherwise they are gathered, as they are, by rank.
      backward_passes_per_step: gradients are summed over so many passes before they are exchanged and applied; a pass
        between only counts (`iterations`, `global_step`). Slices need `sparse_as_dense`.
      op: `hvd.Average` or `hvd.Sum`. `hvd.Adasum`, of an optimizer of TensorFlow 1, lets each rank apply its own
        gradients and combines what they changed, every `backward_passes_per_step` steps.
      gradient_predivide_factor: f: gradients are divided by f before they are summed, and the sum by size/f.
      average_aggregated_gradients: the sum over passes is divided by their number.
      num_groups: an older name of `groups`.
      groups: into how many groups of gradients that travel together all are divided; or lists of variables, where a
        variable in none is a group. Without, each travels when it is there, and small ones together.
      process_set: whose ranks exchange; on others gradients stay their own.
      scale_local_gradients: gradients of variables that `register_local_var` had, which are not exchanged, are divided
        by the number of ranks; by Adasum, whose ranks apply their own anyway, they are not.

    Returns:
      The optimizer, with `register_local_var(var)`.

    Raises:
      ValueError: another `op`, or arguments that don't go together or are none; from its use, gradients of which can't
        be told whether they have been exchanged, where that makes a difference.
      NotImplementedError: Adasum with a process set.
      TypeError: a compression or a process set that is none, or no optimizer.
    """
    if op in (Min, Max, Product):
        raise ValueError(
            f"op: got hvd.{REDUCTIONS[op].capitalize()}, wanted hvd.Average, Sum or, of an optimizer of TensorFlow 1, "
            "Adasum"
        )
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    is_tensorflow1 = isinstance(optimizer, tf.compat.v1.train.Optimizer)
    if op == Adasum and not is_tensorflow1:
        raise ValueError("op == Adasum is not supported yet with Keras")
    exchange = make_exchange(
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        compression=compression,
        process_set=process_set,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        scale_local_gradients=scale_local_gradients,
        sparse_as_dense=sparse_as_dense,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    if not is_tensorflow1:
        return make_exchanging_keras_optimizer(optimizer, exchange, name)
    if op != Adasum:
        name = name or f"Distributed{type(optimizer).__name__}"
        return ExchangingOptimizer(optimizer, exchange, name, use_locking)
    if process_set.process_set_id != global_process_set.process_set_id:
        raise NotImplementedError("Adasum does not support process sets yet")
    name = name or f"DistributedDelta{type(optimizer).__name__}"
    return AdasumOptimizer(optimizer, name, use_locking, exchange.compression, backward_passes_per_step)
