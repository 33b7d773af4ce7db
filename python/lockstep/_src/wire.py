"""The type in which float32 values travel between workers: options `comm_wire_dtype` and `comm_gradient_wire_dtype`.

Half the bytes, and the precision of the narrower type: float16 has 11 bits and no value beyond 65504, bfloat16 8 bits
and the range of float32. Sums over workers are taken in that type as well.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from lockstep._src.context import context


def dtype() -> tf.DType:
    """Of values: rows of sharded tables, `alltoall`."""
    return tf.as_dtype(context.options.comm_wire_dtype or "float32")


def gradient_dtype() -> tf.DType:
    """Of gradients."""
    return tf.as_dtype(context.options.comm_gradient_wire_dtype or dtype())


def to_wire(tensor: tf.Tensor, wire_dtype: tf.DType) -> tf.Tensor:
    """A tensor as it is to travel: float32 in the type of the wire, others as they are."""
    is_narrowed = tensor.dtype == tf.float32 and wire_dtype != tf.float32 and context.world_size > 1
    return tf.cast(tensor, wire_dtype) if is_narrowed else tensor


def through(tensor: tf.Tensor, exchange: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """`exchange(tensor)` with values in the type of the wire. Its gradient travels in that of gradients.

    Args:
      tensor: of any type.
      exchange: linear, and its gradient exchanges in the type that it is given.
    """
    narrowed = to_wire(tensor, dtype())
    return tf.cast(exchange(narrowed), tensor.dtype)
