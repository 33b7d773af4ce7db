"""The type in which float32 values travel between workers: options `comm_wire_dtype` and `comm_gradient_wire_dtype`.

A narrower type halves the bytes, and has less precision: float16 has 11 bits and no value above 65504, bfloat16 has 8
bits and the range of float32. Sums over workers are computed in that type, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.collectives.slices import values_of, with_values
from lockstep._src.engine.context import context


def dtype() -> tf.DType:
    """Returns the wire type of values: rows of sharded tables, `alltoall`."""
    return tf.as_dtype(context.options.comm_wire_dtype or "float32")


def gradient_dtype() -> tf.DType:
    """Returns the wire type of gradients."""
    return tf.as_dtype(context.options.comm_gradient_wire_dtype or dtype())


def to_wire(tensor: tf.Tensor, wire_dtype: tf.DType) -> tf.Tensor:
    """Returns a tensor to send: float32 is cast to the wire type, other types are unchanged."""
    is_narrowed = tensor.dtype == tf.float32 and wire_dtype != tf.float32 and context.world_size > 1
    return tf.cast(tensor, wire_dtype) if is_narrowed else tensor


class GradientCompressor:
    """A compressor that sends gradients in the wire type."""

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType]:
        """Returns the tensor to send, and its original type."""
        return to_wire(tensor, gradient_dtype()), tensor.dtype

    def decompress(self, tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Returns the received tensor in its original type."""
        return tf.cast(tensor, dtype)


def through(tensor: tf.Tensor, exchange: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Returns `exchange(tensor)` with values in their wire type; its gradient uses the wire type of gradients.

    Args:
      tensor: a tensor of any type.
      exchange: a linear function; its gradient must exchange in the type that it gets.
    """
    is_plain = dtype() == gradient_dtype() == tf.float32
    if is_plain or tensor.dtype != tf.float32 or context.world_size == 1:
        return exchange(tensor)
    return _convert(exchange(_convert(tensor, dtype(), "LockstepToWire")), tf.float32, "LockstepFromWire")


def _convert(tensor: tf.Tensor, to: tf.DType, gradient: str) -> tf.Tensor:
    # The gradient of a plain cast would have the wire type of values.
    with tf.compat.v1.get_default_graph().gradient_override_map({"Cast": gradient, "Identity": gradient}):
        return tf.identity(tensor) if tensor.dtype == to else tf.cast(tensor, to)


@tf.RegisterGradient("LockstepToWire")
def _to_wire_gradient(op: tf.Operation, grad: Any) -> Any:
    return _cast(grad, op.inputs[0].dtype)


@tf.RegisterGradient("LockstepFromWire")
def _from_wire_gradient(op: tf.Operation, grad: Any) -> Any:
    del op
    return _cast(grad, gradient_dtype())


def _cast(grad: Any, to: tf.DType) -> Any:
    return with_values(grad, tf.cast(values_of(grad), to))
