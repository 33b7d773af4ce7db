"""Reductions of dense and of sparse tensors, with compression: `hvd.allreduce` and the like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.mpi_ops import Average, Sum, handle_average_backwards_compatibility
from horovod.tensorflow.util import as_it_is
from lockstep import named


@as_it_is
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
      op: hvd.Average (the default), Sum, Min, Max, Product or Adasum. The average of integers is cut off.
      prescale_factor: before the reduction.
      postscale_factor: behind it.
      name: of the tensor.
      process_set: whose ranks take part.
      ignore_name_scope: the scope is no part of the name.

    Returns:
      Of the tensor's shape and type. Of tf.IndexedSlices the rows of all ranks, one rank's behind the other's; they
      are not merged, and the average of integers is no integer. Gradients of sums, averages, minima, maxima and
      products are those that calculus gives for the sum of all ranks' losses; Adasum has none.

    Raises:
      ValueError: both `op` and `average`, or an `op`, a compression or a process set that is none.
      NotImplementedError: tf.IndexedSlices with a factor, or another `op` than Sum and Average.
      tf.errors.FailedPreconditionError: the ranks differ; says in what, and which rank has what.
    """
    arguments = (average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor)
    return grouped_allreduce([tensor], *arguments, process_set, ignore_name_scope, name)[0]


@as_it_is
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
    """As `allreduce`, of several tensors, dense or sparse in any order; dense ones all or none.

    There have to be as many on all ranks; an empty list is returned as it is. `name` is the operation's. The other
    arguments, results and errors are those of `allreduce`.
    """
    if not tensors:
        return tensors
    op = handle_average_backwards_compatibility(op, average)
    is_sparse = [isinstance(tensor, tf.IndexedSlices) for tensor in tensors]
    if any(is_sparse):
        _check_sparse(op, prescale_factor, postscale_factor)

    def reduce_dense(dense: list[Any]) -> list[tf.Tensor]:
        travelling, contexts = _compress("allreduce", dense, name, compression)
        factors = (prescale_factor, postscale_factor)
        reduced = mpi_ops._grouped_allreduce(travelling, name, op, *factors, ignore_name_scope, process_set)
        return _decompress(reduced, contexts, compression)

    def reduce_sparse(sparse: list[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
        own_name = name if name is None or all(is_sparse) else f"{name}.sparse"
        return _gather_slices(sparse, op, compression, own_name, process_set, ignore_name_scope)

    results: list[Any] = [None] * len(tensors)
    for sparse, device, reduce in ((False, device_dense, reduce_dense), (True, device_sparse, reduce_sparse)):
        places = [i for i, one in enumerate(is_sparse) if one == sparse]
        if not places:
            continue
        with tf.device(device or None):
            reduced = reduce([tensors[i] for i in places])
        for i, result in zip(places, reduced, strict=True):
            results[i] = result
    return results


def _check_sparse(op: int, prescale_factor: float, postscale_factor: float) -> None:
    if op not in (Sum, Average):
        raise NotImplementedError(
            "tf.IndexedSlices can be reduced by hvd.Sum and hvd.Average alone; give an optimizer sparse_as_dense=True, "
            "or this function tf.convert_to_tensor(slices)"
        )
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError("prescale_factor and postscale_factor are for dense tensors, not tf.IndexedSlices")


def _gather_slices(
    slices: list[tf.IndexedSlices],
    op: int,
    compression: type[Compressor],
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool,
) -> list[tf.IndexedSlices]:
    """The rows of all ranks, divided by their number for an average."""

    def gather(tensors: list[tf.Tensor], own_name: str | None) -> list[tf.Tensor]:
        return mpi_ops.grouped_allgather(tensors, own_name, ignore_name_scope, process_set)

    travelling, contexts = _compress("allreduce", [one.values for one in slices], name, compression)
    # Values have the tensor's own name: a rank that has a dense tensor of that name is told so.
    values = _decompress(gather(travelling, name), contexts, compression)
    indices = gather([one.indices for one in slices], name and f"{name}.indices")
    if op == Average:
        # In a graph as it is when it runs, since an elastic job's may change.
        eager = tf.executing_eagerly()
        ranks = tf.constant(process_set.size()) if eager else named.size_of(process_set.process_set_id)
        # Of integers a floating-point number, as Horovod and TensorFlow divide.
        values = [value / tf.cast(ranks, value.dtype) for value in values]
    return [
        tf.IndexedSlices(value, index, dense_shape=one.dense_shape)
        for value, index, one in zip(values, indices, slices, strict=True)
    ]


def _compress(
    kind: str, tensors: Sequence[Any], name: str | None, compression: type[Compressor]
) -> tuple[list[tf.Tensor], list[Any]]:
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError(f"compression is {compression!r}, wanted hvd.Compression.none, fp16, bf16 or a Compressor")
    pairs = [compression.compress(tensor) for tensor in named.as_tensors(kind, tensors, name)]
    return [tensor for tensor, _ in pairs], [context for _, context in pairs]


def _decompress(tensors: list[tf.Tensor], contexts: list[Any], compression: type[Compressor]) -> list[tf.Tensor]:
    return [compression.decompress(tensor, context) for tensor, context in zip(tensors, contexts, strict=True)]


@as_it_is
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
    """Reduces a tensor [n, ...] over the R ranks and deals its rows out to them.

    Arguments and errors are those of `allreduce`, for dense tensors.

    Returns:
      [n / R, ...]; where n is no multiple of R, the first n % R ranks have one row more. The gradient gathers those of
      all ranks, times the factors, and for a sum times R, as in Horovod. Only sums and averages have one.
    """

    def reduce(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        factors = (prescale_factor, postscale_factor)
        return mpi_ops._grouped_reducescatter(tensors, name, op, ignore_name_scope, process_set, *factors)

    return _reduce_compressed([tensor], name, device_dense, compression, reduce)[0]


@as_it_is
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """As `reducescatter`, of several tensors, all or none. An empty list is returned as it is."""
    if not tensors:
        return tensors

    def reduce(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        return mpi_ops._grouped_reducescatter(
            tensors,
            op=op,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )

    return _reduce_compressed(tensors, None, device_dense, compression, reduce)


def _reduce_compressed(
    tensors: Sequence[Any],
    name: str | None,
    device: str,
    compression: type[Compressor],
    reduce: Callable[[list[tf.Tensor]], list[tf.Tensor]],
) -> list[tf.Tensor]:
    with tf.device(device or None):
        travelling, contexts = _compress("reducescatter", tensors, name, compression)
        return _decompress(reduce(travelling), contexts, compression)
