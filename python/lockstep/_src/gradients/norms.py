"""Norms of gradients, of which a worker may have only a part.

The gradient of a sharded table is distributed over the workers like the table's rows. Its norm is known only after all
workers have summed their parts. `tf.linalg.global_norm`, `tf.clip_by_global_norm` and `tf.clip_by_norm` would compute
with the part of one worker. They would clip differently on each worker, so that the replicated weights diverge.

A row that occurs several times among the slices counts as the sum of its slices, which is the gradient. TensorFlow
counts the slices of a plain variable one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.collectives.slices import summed_by_row, with_values
from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables import sharded as sharding


def intercept_norms(interception: Interception) -> None:
    """Makes TensorFlow's norms and clipping by norm work with gradients of sharded tables during the interception."""
    interception.replace(symbols.GLOBAL_NORM, _wrap_global_norm)
    interception.replace(symbols.CLIP_BY_NORM, _wrap_clip_by_norm)
    interception.replace(symbols.IS_ALL_FINITE, _wrap_is_all_finite)


def _wrap_is_all_finite(is_all_finite: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Wraps the check for finite gradients: gradients of sharded tables differ, so all workers' must be finite.

    Otherwise the loss scale, which depends on the check, would differ between workers, and so would the skipped steps.
    """

    @functools.wraps(is_all_finite)
    def wrapped(grads: Sequence[Any]) -> tf.Tensor:
        finite = is_all_finite(grads)
        if context.world_size == 1 or tf.executing_eagerly():
            return finite
        return tf.cast(ordered.allreduce(tf.cast(finite, tf.int32), op="min", name="all_finite"), tf.bool)

    return wrapped


def _wrap_global_norm(global_norm: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    @functools.wraps(global_norm)
    def wrapped(t_list: Sequence[Any], name: str | None = None) -> tf.Tensor:
        sharded = [is_sharded_gradient(t) for t in t_list]
        if not any(sharded):
            return global_norm(t_list, name)
        with tf.name_scope(name or "global_norm"):
            squared = squared_norm([t for t, is_sharded in zip(t_list, sharded, strict=True) if is_sharded])
            rest = [t for t, is_sharded in zip(t_list, sharded, strict=True) if t is not None and not is_sharded]
            if rest:
                squared += tf.square(tf.cast(global_norm(rest), squared.dtype))
            return tf.sqrt(squared)

    return wrapped


def _wrap_clip_by_norm(clip_by_norm: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(clip_by_norm)
    def wrapped(t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> Any:
        if axes is not None or not is_sharded_gradient(t):
            return clip_by_norm(t, clip_norm, axes, name)
        with tf.name_scope(name or "clip_by_norm"):
            norm = tf.sqrt(squared_norm([t]))
            clip_norm = tf.cast(clip_norm, t.dtype)
            values = t.values * (clip_norm / tf.maximum(tf.cast(norm, t.dtype), clip_norm))
            return with_values(t, values)

    return wrapped


def is_sharded_gradient(gradient: Any) -> bool:
    """Returns whether a gradient consists of slices for the rows of a sharded table that this worker holds."""
    return isinstance(gradient, tf.IndexedSlices) and sharding.are_rows_of_the_shard(gradient.indices)


def squared_norm(slices: Sequence[tf.IndexedSlices]) -> tf.Tensor:
    """Returns the squared norm of gradients of sharded tables over all workers: a scalar, the same on each worker."""
    parts = []
    for gradient in slices:
        summed = summed_by_row(gradient)
        parts.append(tf.reduce_sum(tf.square(tf.cast(summed.values, tf.float32))))
    own = tf.add_n(parts)
    return own if context.world_size == 1 else ordered.allreduce(own, op="sum", name="squared_norm")
