"""Moments over the rows of all ranks, for batch normalization."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lockstep._src import named


@tf.autograph.experimental.do_not_convert
def moments_of_all(
    inputs: tf.Tensor, axes: Sequence[int], mask: tf.Tensor | None, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance over the values of all ranks, which may have any number of rows, also none.

    Each rank's mean and variance are gathered, and joined by the number of its values (Chan et al., 1979): exact where
    the mean is large against the deviation, in one exchange.

    Args:
      inputs: [B, ..., C], in whatever order of axes.
      axes: over which it is summed.
      mask: of the shape of `inputs` but for dimensions of 1: where it is 0, values don't count; None: all do.
      name: of the exchange; several of one name in a graph are told apart.

    Returns:
      (mean, variance): of the shape of `inputs` with 1 in `axes`, in its type, at least float32. Gradients are those
      of the sum of all ranks' losses.
    """
    dtype = tf.float32 if inputs.dtype in (tf.float16, tf.bfloat16) else inputs.dtype
    inputs, axes = tf.cast(inputs, dtype), list(axes)
    weights = tf.ones_like(inputs) if mask is None else tf.broadcast_to(tf.cast(mask, dtype), tf.shape(inputs))
    count = tf.reduce_sum(weights, axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * weights, axes, keepdims=True), count)
    squares = tf.reduce_sum(tf.square(inputs - mean) * weights, axes, keepdims=True)
    static = mean.shape
    # One row of this rank: [1, 3, C].
    row = tf.stack([tf.reshape(t, [-1]) for t in (tf.stop_gradient(count), mean, squares)])[tf.newaxis]
    names = [name] if tf.executing_eagerly() else None
    (rows,) = named.allgather([row], names=names)
    counts, means, all_squares = rows[:, 0], rows[:, 1], rows[:, 2]
    total = tf.reduce_sum(counts, 0)
    joint = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), total)
    variance = tf.math.divide_no_nan(tf.reduce_sum(all_squares + counts * tf.square(means - joint), 0), total)
    shape = tf.shape(mean)
    mean, variance = tf.reshape(joint, shape), tf.reshape(variance, shape)
    mean.set_shape(static)
    variance.set_shape(static)
    return mean, variance
