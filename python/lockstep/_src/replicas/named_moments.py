"""Moments over the rows of all ranks, for batch normalization."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lockstep._src.collectives import named


@tf.autograph.experimental.do_not_convert
def moments_of_all(
    inputs: tf.Tensor, axes: Sequence[int], mask: tf.Tensor | None, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes mean and variance over the values of all ranks, each with any number of rows, including none.

    A first all-reduce gives an origin, the approximate mean. A second one sums the deviations from the origin and their
    squares. This is exact also if the mean is large compared to the deviation. Ranks that have joined add nothing to
    the all-reduces.

    Args:
      inputs: [B, ..., C], with the axes in any order.
      axes: the axes to sum over.
      mask: a tensor that can be broadcast to the shape of `inputs`; values where it is 0 do not count. None: all count.
      name: the prefix of the exchanges' names. In a graph, the exchanges have the names of their operations.

    Returns:
      (mean, variance): the shape of `inputs` with 1 in `axes`, in the type of `inputs` but at least float32. Gradients
      are those of the sum of all ranks' losses.
    """
    dtype = tf.float32 if inputs.dtype in (tf.float16, tf.bfloat16) else inputs.dtype
    inputs, axes = tf.cast(inputs, dtype), list(axes)
    weights = tf.ones_like(inputs) if mask is None else tf.broadcast_to(tf.cast(mask, dtype), tf.shape(inputs))

    def summed(terms: Sequence[tf.Tensor], what: str) -> list[tf.Tensor]:
        sums = tf.stack([tf.reduce_sum(term, axes, keepdims=True) for term in terms])
        # In a graph, the exchange has the operation's name, which is unique.
        called = {"names": [f"{name}/{what}"]} if tf.executing_eagerly() else {"name": what}
        return tf.unstack(named.allreduce([sums], **called)[0], len(terms))

    # The moments do not depend on the origin, so no gradient passes through it.
    count, total = summed([weights, tf.stop_gradient(inputs) * weights], "origin")
    origin = tf.stop_gradient(tf.math.divide_no_nan(total, count))
    deviations = inputs - origin
    first, second = summed([deviations * weights, tf.square(deviations) * weights], "moments")
    # The rounding error of the origin.
    shift = tf.math.divide_no_nan(first, count)
    variance = tf.math.divide_no_nan(second, count) - tf.square(shift)
    return origin + shift, tf.maximum(variance, tf.zeros([], dtype))
