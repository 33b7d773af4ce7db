"""Norms of gradients, of which a worker may have only a part.

The gradient of a table is distributed over the workers like the table's rows (`graph/parts.py`). Its norm is known only
after all workers have summed their parts. `tf.linalg.global_norm`, `tf.clip_by_global_norm` and `tf.clip_by_norm` would
compute with the part of one worker. They would clip differently on each worker, so that the replicated weights diverge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.collectives.slices import values_of, with_values
from lockstep._src.engine.context import context
from lockstep._src.graph import parts
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around


def intercept_norms(interception: Interception) -> None:
    """Makes TensorFlow's norms and clipping by norm work with gradients of tables during the interception."""
    interception.replace(symbols.GLOBAL_NORM, around(global_norm))
    interception.replace(symbols.CLIP_BY_NORM, around(_clip_by_norm))
    interception.replace(symbols.CLIP_BY_AVERAGE_NORM, around(_clip_by_average_norm))
    interception.replace(symbols.IS_ALL_FINITE, _wrap_is_all_finite)


def _wrap_is_all_finite(is_all_finite: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Wraps the check for finite gradients: gradients of tables differ, so all workers' must be finite.

    Otherwise the loss scale, which depends on the check, would differ between workers, and so would the skipped steps.
    """

    @functools.wraps(is_all_finite)
    def wrapped(grads: Sequence[Any]) -> tf.Tensor:
        finite = is_all_finite(grads)
        if context.world_size == 1 or tf.executing_eagerly():
            return finite
        return tf.cast(ordered.allreduce(tf.cast(finite, tf.int32), op="min", name="all_finite"), tf.bool)

    return wrapped


def global_norm(norm: Callable[..., tf.Tensor], t_list: Sequence[Any], name: str | None = None) -> tf.Tensor:
    """Returns the norm over all gradients, of which this worker may have only parts.

    Args:
      norm: the library's function for it, of a list.
      t_list: tensors and `tf.IndexedSlices`; None is skipped.
      name: the name of the operation.
    """
    named = {} if name is None else {"name": name}
    own = [t for t in t_list if _is_part(t)]
    if not own:
        return norm(t_list, **named)
    ids = set(map(id, own))
    rest = [t for t in t_list if t is not None and id(t) not in ids]
    with tf.name_scope(name or "global_norm"):
        dtype = _wide(*own)
        squared = _of_all(tf.add_n([tf.reduce_sum(tf.square(tf.cast(values_of(t), dtype))) for t in own]))
        if rest:
            squared += tf.square(tf.cast(norm(rest), dtype))
        return tf.sqrt(squared)


def _clip_by_norm(clip: Callable[..., Any], t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> Any:
    if not _is_part(t) or not _includes_rows(axes, values_of(t).shape.rank):
        return clip(t, clip_norm, axes, name)
    with tf.name_scope(name or "clip_by_norm"):
        values = values_of(t)
        norm = tf.sqrt(_of_all(tf.reduce_sum(tf.square(tf.cast(values, _wide(values))), axes, keepdims=True)))
        clip_norm = tf.cast(clip_norm, values.dtype)
        return with_values(t, values * (clip_norm / tf.maximum(tf.cast(norm, values.dtype), clip_norm)))


def _clip_by_average_norm(clip: Callable[..., Any], t: Any, clip_norm: Any, name: str | None = None) -> Any:
    if not _is_part(t):
        return clip(t, clip_norm, name)
    with tf.name_scope(name or "clip_by_average_norm"):
        values = tf.convert_to_tensor(t)
        dtype = _wide(values)
        squared = tf.reduce_sum(tf.square(tf.cast(values, dtype)))
        squared, count = tf.unstack(_of_all(tf.stack([squared, tf.cast(tf.size(values), dtype)])))
        average = tf.cast(tf.sqrt(squared) / count, values.dtype)
        clip_norm = tf.cast(clip_norm, values.dtype)
        return values * (clip_norm / tf.maximum(average, clip_norm))


def _is_part(gradient: Any) -> bool:
    return context.world_size > 1 and parts.is_part(gradient)


def _includes_rows(axes: Any, rank: int | None) -> bool:
    """Returns whether a reduction over these axes adds values of several rows, which may be on several workers."""
    if axes is None:
        return True
    return any(axis == 0 or axis == -(rank or 0) for axis in tf.nest.flatten(axes))


def _wide(*gradients: Any) -> tf.DType:
    """Returns the type in which squares are added: squares of half precision would overflow."""
    return tf.float64 if any(gradient.dtype == tf.float64 for gradient in gradients) else tf.float32


def _of_all(own: tf.Tensor) -> tf.Tensor:
    """Returns the sum over the workers."""
    return ordered.allreduce(own, op="sum", name="squared_norm")
