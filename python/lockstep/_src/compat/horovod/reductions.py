"""Reductions of dense tensors and of slices, which may be compressed on their way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.compat.horovod import collectives
from lockstep._src.compat.horovod.collectives import AVERAGE, SUM
from lockstep._src.compat.horovod.compression import Compressor
from lockstep._src.compat.horovod.process_sets import ProcessSet, number_of


class Reduction(NamedTuple):
    """A reduction's arguments, the same for all of its tensors.

    Attributes:
      op: a value of Horovod's `op`.
      compression: makes tensors into what travels, and back.
      process_set: the set whose ranks take part.
      name: of the tensors; None: they are named by the call.
      prescale_factor: multiplies tensors before the reduction.
      postscale_factor: multiplies the results.
      ignore_name_scope: the scope is not part of the name.
      device_dense: where the operation of dense tensors is put in the graph; exchanges are in host memory.
      device_sparse: the same for slices.
    """

    op: int
    compression: type[Compressor]
    process_set: ProcessSet
    name: str | None = None
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    ignore_name_scope: bool = False
    device_dense: str = ""
    device_sparse: str = ""


def allreduce(tensors: Sequence[Any], how: Reduction) -> list[Any]:
    """Returns dense tensors reduced and slices gathered; see `horovod.tensorflow.grouped_allreduce`."""
    if not tensors:
        return []
    is_sparse = [isinstance(tensor, tf.IndexedSlices) for tensor in tensors]
    if any(is_sparse):
        _check_sparse(how)
    results: list[Any] = [None] * len(tensors)
    slices_how = how if how.name is None or all(is_sparse) else how._replace(name=f"{how.name}.sparse")
    for sparse, device, reduce in (
        (False, how.device_dense, lambda dense: _reduce_dense("allreduce", dense, how)),
        (True, how.device_sparse, lambda slices: _gather_slices(slices, slices_how)),
    ):
        places = [i for i, one in enumerate(is_sparse) if one == sparse]
        if not places:
            continue
        with tf.device(device):
            reduced = reduce([tensors[i] for i in places])
        for i, result in zip(places, reduced, strict=True):
            results[i] = result
    return results


def reducescatter(tensors: Sequence[Any], how: Reduction) -> list[tf.Tensor]:
    """Returns this rank's rows of the reduced tensors, which are dense."""
    if not tensors:
        return []
    with tf.device(how.device_dense):
        return _reduce_dense("reducescatter", tensors, how)


def _check_sparse(how: Reduction) -> None:
    if how.op not in (SUM, AVERAGE):
        raise NotImplementedError(
            "only hvd.Sum and hvd.Average can reduce tf.IndexedSlices; pass sparse_as_dense=True to an optimizer, or "
            "tf.convert_to_tensor(slices) to this function"
        )
    if how.prescale_factor != 1.0 or how.postscale_factor != 1.0:
        raise NotImplementedError("prescale_factor and postscale_factor are for dense tensors, not tf.IndexedSlices")


def _reduce_dense(kind: str, tensors: Sequence[Any], how: Reduction) -> list[tf.Tensor]:
    """Returns what a collective makes of compressed tensors, decompressed."""
    travelling, contexts = _compress(kind, tensors, how)
    factors = how.prescale_factor, how.postscale_factor
    reduced = collectives.reduce(kind, travelling, how.name, how.op, *factors, how.ignore_name_scope, how.process_set)
    return _decompress(reduced, contexts, how)


def _gather_slices(slices: list[tf.IndexedSlices], how: Reduction) -> list[tf.IndexedSlices]:
    """Returns the rows of all ranks; for an average, divided by the number of ranks."""
    travelling, contexts = _compress("allreduce", [one.values for one in slices], how)
    # Values have the tensor's own name. A rank that has a dense tensor of that name then gets an error.
    values = collectives.allgather(travelling, how.name, how.ignore_name_scope, how.process_set)
    values = _decompress(values, contexts, how)
    indices = collectives.allgather(
        [one.indices for one in slices],
        how.name and f"{how.name}.indices",
        how.ignore_name_scope,
        how.process_set,
    )
    if how.op == AVERAGE:
        # A graph asks when it runs, because the size of an elastic job may change.
        eager = tf.executing_eagerly()
        ranks = tf.constant(how.process_set.size()) if eager else named.size_of(number_of(how.process_set, "allreduce"))
        # Integers become floating-point numbers: Horovod and TensorFlow divide so.
        values = [value / tf.cast(ranks, value.dtype) for value in values]
    return [
        tf.IndexedSlices(value, index, dense_shape=one.dense_shape)
        for value, index, one in zip(values, indices, slices, strict=True)
    ]


def _compress(kind: str, tensors: Sequence[Any], how: Reduction) -> tuple[list[tf.Tensor], list[Any]]:
    compression = how.compression
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError(f"compression is {compression!r}, wanted hvd.Compression.none, fp16, bf16 or a Compressor")
    pairs = [compression.compress(tensor) for tensor in named.as_tensors(kind, tensors, how.name)]
    return [tensor for tensor, _ in pairs], [context for _, context in pairs]


def _decompress(tensors: list[tf.Tensor], contexts: list[Any], how: Reduction) -> list[tf.Tensor]:
    return [how.compression.decompress(tensor, context) for tensor, context in zip(tensors, contexts, strict=True)]
