"""Reductions of dense and of sparse tensors, with compression: `hvd.allreduce` and the like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.mpi_ops import Average, handle_average_backwards_compatibility
from horovod.tensorflow.util import without_autograph
from lockstep._src.compat.horovod import reductions


@without_autograph
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over the ranks: postscale_factor * reduction of (prescale_factor * tensor).

    Args:
      tensor: of the same shape and type on all ranks; or tf.IndexedSlices, of any number of rows.
      average: the old form of `op`: True for hvd.Average, False for hvd.Sum.
      device_dense: where the operation is put in the graph; exchanges are in host memory.
      device_sparse: the same for tf.IndexedSlices.
      compression: how values travel; see `Compression`.
      op: hvd.Average (the default), Sum, Min, Max, Product or Adasum. The average of integers is truncated.
      prescale_factor: before the reduction.
      postscale_factor: after it.
      name: of the tensor.
      process_set: the set whose ranks take part.
      ignore_name_scope: the scope is not part of the name.

    Returns:
      A result of the tensor's shape and type. For tf.IndexedSlices the rows of all ranks, by rank; they are not merged,
      and the average of integers is not an integer. Gradients of sums, averages, minima, maxima and products are the
      mathematical ones for the sum of all ranks' losses; Adasum has none.

    Raises:
      ValueError: both `op` and `average`, or an invalid `op`, compression or process set.
      NotImplementedError: tf.IndexedSlices with a factor, or another `op` than Sum and Average.
      tf.errors.FailedPreconditionError: the ranks differ; the message has the difference, by rank.
    """
    arguments = (average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor)
    return grouped_allreduce([tensor], *arguments, process_set, ignore_name_scope, name)[0]


@without_autograph
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces several tensors as `allreduce` does, dense or sparse in any order; dense ones all or none.

    All ranks give as many; an empty list is returned unchanged. `name` is the operation's. The other arguments, results
    and errors are the same as in `allreduce`.
    """
    how = reductions.Reduction(
        op=handle_average_backwards_compatibility(op, average),
        compression=compression,
        name=name,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    return reductions.allreduce(tensors, how)


@without_autograph
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor [n, ...] over the R ranks and returns this rank's share of its rows.

    Arguments and errors are the same as in `allreduce`, for dense tensors.

    Returns:
      [n / R, ...]; if n is not a multiple of R, the first n % R ranks have one row more. The gradient gathers the
      gradients of all ranks, times the factors, and for a sum times R, as in Horovod. Only sums and averages have one.
    """
    how = reductions.Reduction(
        op=op,
        compression=compression,
        name=name,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope,
        device_dense=device_dense,
    )
    return reductions.reducescatter([tensor], how)[0]


@without_autograph
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduces several tensors as `reducescatter` does, all or none. An empty list is returned unchanged."""
    how = reductions.Reduction(
        op=op,
        compression=compression,
        name=None,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        device_dense=device_dense,
    )
    return reductions.reducescatter(tensors, how)
