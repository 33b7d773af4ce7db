"""Moments over the rows of all ranks, for batch normalization."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lockstep._src.collectives import named


@tf.autograph.experimental.do_not_convert
def moments_of_all(
    inputs: tf.Tensor, axes: Sequence[int], mask: tf.Tensor | None, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance over the values of all ranks, which may have any number of rows, also none.

    Ranks sum what says where about values are, and then deviations from there, and their squares: exact where the mean
    is large against the deviation. Both are all-reduces, which ranks that have joined add nothing to.

    Args:
      inputs: [B, ..., C], in whatever order of axes.
      axes: over which it is summed.
      mask: of the shape of `inputs` but for dimensions of 1: where it is 0, values don't count; None: all do.
      name: begins those of the exchanges; in a graph they have their operations' own.

    Returns:
      (mean, variance): of the shape of `inputs` with 1 in `axes`, in its type, at least float32. Gradients are those
      of the sum of all ranks' losses.
    """
    dtype = tf.float32 if inputs.dtype in (tf.float16, tf.bfloat16) else inputs.dtype
    inputs, axes = tf.cast(inputs, dtype), list(axes)
    weights = tf.ones_like(inputs) if mask is None else tf.broadcast_to(tf.cast(mask, dtype), tf.shape(inputs))

    def summed(terms: Sequence[tf.Tensor], what: str) -> list[tf.Tensor]:
        sums = tf.stack([tf.reduce_sum(term, axes, keepdims=True) for term in terms])
        # In a graph the operation's name, which is its own.
        called = {"names": [f"{name}/{what}"]} if tf.executing_eagerly() else {"name": what}
        return tf.unstack(named.allreduce([sums], **called)[0], len(terms))

    # Any origin gives the same moments, so that no gradient goes through it.
    count, total = summed([weights, tf.stop_gradient(inputs) * weights], "origin")
    origin = tf.stop_gradient(tf.math.divide_no_nan(total, count))
    deviations = inputs - origin
    first, second = summed([deviations * weights, tf.square(deviations) * weights], "moments")
    # What rounding has left in the origin.
    shift = tf.math.divide_no_nan(first, count)
    variance = tf.math.divide_no_nan(second, count) - tf.square(shift)
    return origin + shift, tf.maximum(variance, tf.zeros([], dtype))
