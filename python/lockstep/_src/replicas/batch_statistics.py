"""Statistics over the batches of all workers, so that batch normalization gives the same results as with one worker.

The moments by which a layer normalizes, and the moving averages that it keeps for inference, depend on the whole batch
of a step. If each worker used only its own part of the batch, the layer would compute different values on two workers
than on one. Its moving averages would differ between workers, and a part without rows would make them NaN.

`tf.nn.moments` over the batch (with axis 0 among its axes) is therefore exchanged. One collective carries a count, a
mean and a sum of squared differences per feature, which are merged as in Chan, Golub and LeVeque (1979). The backward
pass has one collective of the same size. `tf.nn.fused_batch_norm` is built from these moments. Layer normalization uses
other axes and stays unchanged.

All other values of a batch are averaged over the workers before they are assigned to moving averages. The last batches
of a step with several batches may have no rows on any worker; such a batch does not change the averages. The other
batches change them one after the other.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep._src.graph import alike, row_weights
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception

# The collection of pairs (moving average, operation that updates it).
_MOVED = ("lockstep", "moved_averages")


def intercept_batch_statistics(interception: Interception) -> None:
    """Makes batch statistics cover the batches of all workers while the interception lasts."""
    # tf.nn.moments of TensorFlow 2 calls the function in its module, so it needs no row of its own.
    interception.replace(symbols.MOMENTS, _wrap_moments)
    interception.replace(symbols.FUSED_BATCH_NORM, _wrap_fused_batch_norm)
    interception.replace(symbols.MOVING_AVERAGE, _wrap_moving_average)


def _batches_are_partial() -> bool:
    """Returns whether a batch of the graph may be only a part of the step's rows, or empty."""
    options = context.options
    in_parts = context.world_size > 1 or (options.data_batch_count > 1 and not options.data_sync_drop_remainder)
    return in_parts and options.mode == "train" and not tf.executing_eagerly()


def _wrap_moments(moments: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(moments)

    @functools.wraps(moments)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        if not _batches_are_partial():
            return moments(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        x = tf.convert_to_tensor(given["x"])
        axes = tf.get_static_value(tf.convert_to_tensor(given["axes"]))
        if x.shape.rank is None or axes is None or not x.dtype.is_floating:
            return moments(*args, **kwargs)
        axes = sorted({int(axis) % x.shape.rank for axis in axes.reshape(-1)})
        if 0 not in axes:
            return moments(*args, **kwargs)
        with tf.name_scope(given.get("name") or "moments"):
            mean, variance = _moments_of_all(x, axes)
            if not (given.get("keepdims") or given.get("keep_dims")):
                mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
            alike.note(mean)
            alike.note(variance)
            return mean, variance

    return wrapped


def _moments_of_all(x: tf.Tensor, axes: list[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance of all workers' `x` over `axes`; these axes are kept with size 1."""
    dtype = x.dtype
    y = tf.cast(x, tf.float32) if dtype.size < 4 else x

    @tf.custom_gradient
    def moments(y: tf.Tensor) -> Any:
        count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(y, out_type=tf.int64), axes)), y.dtype)
        own_mean = tf.math.divide_no_nan(tf.reduce_sum(y, axes, keepdims=True), count)
        own_squares = tf.reduce_sum(tf.math.squared_difference(y, own_mean), axes, keepdims=True)
        size = tf.size(own_mean)
        packed = tf.concat([[count], tf.reshape(own_mean, [-1]), tf.reshape(own_squares, [-1])], 0)
        gathered = ordered.allgather(packed[tf.newaxis], name="moments")
        counts, means, squares = gathered[:, :1], gathered[:, 1 : 1 + size], gathered[:, 1 + size :]
        total = tf.reduce_sum(counts)
        mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), total)
        squares = tf.reduce_sum(squares + counts * tf.math.squared_difference(means, mean), 0)
        mean = tf.reshape(mean, tf.shape(own_mean))
        variance = tf.reshape(tf.math.divide_no_nan(squares, total), tf.shape(own_mean))
        for statistic in (mean, variance):
            statistic.set_shape(own_mean.shape)

        def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
            # Each worker's loss counts with its weight. This worker's gradient is multiplied by its own weight later,
            # in the exchange of gradients. That weight counts all batches in the loss, and `x` may be only one of them.
            parts = [of_mean, of_variance]
            weight = row_weights.of([x, *parts])
            if weight is not None:
                parts = [weight.times(part) for part in parts]
            of_mean, of_variance = ordered.allreduce(parts, op="sum", name="moments_gradient")
            of_y = tf.math.divide_no_nan(of_mean + 2.0 * (y - mean) * of_variance, total)
            return of_y if weight is None else tf.math.divide_no_nan(of_y, tf.cast(weight.weight, y.dtype))

        return (mean, variance), gradient

    mean, variance = moments(y)
    return tf.cast(mean, dtype), tf.cast(variance, dtype)


def _wrap_fused_batch_norm(fused_batch_norm: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(fused_batch_norm)

    @functools.wraps(fused_batch_norm)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if not _batches_are_partial() or given["is_training"] is not True:
            return fused_batch_norm(*args, **kwargs)
        x = tf.convert_to_tensor(given["x"])
        channel = given["data_format"].index("C")
        axes = [axis for axis in range(x.shape.rank) if axis != channel]
        with tf.name_scope(given["name"] or "fused_batch_norm"):
            y = tf.cast(x, tf.float32)
            mean, variance = tf.compat.v1.nn.moments(y, axes, keepdims=True)
            shape = [-1 if axis == channel else 1 for axis in range(x.shape.rank)]
            offset, scale = (tf.reshape(given[name], shape) for name in ("offset", "scale"))
            normalized = tf.nn.batch_normalization(y, mean, variance, offset, scale, given["epsilon"])
            mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
            # The op's running variance is unbiased, so the variance is multiplied by count / (count - 1).
            own = tf.cast(tf.size(y), tf.float32) / tf.cast(tf.shape(y)[channel], tf.float32)
            count = ordered.allreduce(own, op="sum", name="rows_of_all")
            alike.note(count)
            variance *= count / tf.maximum(count - 1.0, 1.0)
            factor = given["exponential_avg_factor"]
            if factor != 1.0:
                mean = given["mean"] * (1.0 - factor) + mean * factor
                variance = given["variance"] * (1.0 - factor) + variance * factor
            return tf.cast(normalized, x.dtype), mean, variance

    return wrapped


def _wrap_moving_average(assign_moving_average: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(assign_moving_average)
    def wrapped(variable: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if _batches_are_partial() and isinstance(value, tf.Tensor) and value.dtype.is_floating:
            batch = row_weights.of([value])
            if alike.differs(value):
                value = ordered.allreduce(row_weights.weighted(value), op="mean", name="moving_average")
            if batch is not None and context.options.data_batch_count > 1:
                assign = functools.partial(assign_moving_average, variable)
                return _in_turn(variable, value, batch, lambda value: assign(value, *args, **kwargs))
        return assign_moving_average(variable, value, *args, **kwargs)

    return wrapped


def _in_turn(variable: Any, value: tf.Tensor, batch: Any, assign: Callable[[tf.Tensor], Any]) -> Any:
    """Updates a moving average with one batch of a step, after the batches before it; skips a batch without rows."""
    graph = tf.compat.v1.get_default_graph()
    before = [moved for moved_variable, moved in graph.get_collection(_MOVED) if moved_variable is variable]
    with tf.control_dependencies(before[-1:]):
        now = tf.cast(variable.read_value(), value.dtype)
        moved = assign(tf.where(batch.total > 0, value, now))
    graph.add_to_collection(_MOVED, (variable, moved))
    return moved
