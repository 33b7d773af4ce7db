"""Gradients as a program sees them: one slice for each row, and known to be parts if the variable is a table.

| replaced | result |
| --- | --- |
| `tf.gradients`, by the function that computes it; so `compute_gradients` of TensorFlow 1, too | see below |
| `tf.GradientTape.gradient` | see below |

In a scope, the `tf.IndexedSlices` of every variable have one slice for each row. For a table, that is the sum over all
workers. So norms, clipping and functions of each element give what they give for the gradient in dense form. Outside of
scopes this holds only for tables. A fused update takes the slices before this sum (`before_sum`), which is then not
computed.

A table's gradient is spread over the workers like the table's rows, in slices or dense: it is noted as a part. All
gradients are noted as this worker's own, also gradients of exchanged gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives.slices import values_of, with_unique_rows
from lockstep._src.engine import apart
from lockstep._src.engine.context import context
from lockstep._src.graph import alike, parts
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables.sharded import shard


def intercept_gradients(interception: Interception) -> None:
    """Makes functions of TensorFlow return gradients as a program is to see them during the interception."""
    interception.replace(symbols.GRADIENTS, _wrap_gradients)
    interception.replace(symbols.TAPE_GRADIENT, _wrap_tape)


def seen(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns gradients of variables, or of tensors, as a program is to see them; None stays None."""
    return [_seen(gradient, variable) for gradient, variable in zip(gradients, variables, strict=True)]


def _seen(gradient: Any, variable: Any) -> Any:
    value = getattr(variable, "_value", variable)  # of a keras.Variable
    if gradient is None or not isinstance(value, tf.Variable):
        return gradient
    is_table = shard.is_table(value)
    if isinstance(gradient, tf.IndexedSlices) and (is_table or apart.is_scope_open()):
        gradient = with_unique_rows(gradient)
    if is_table and context.world_size > 1:
        parts.note(gradient)
    return gradient


def _computed(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns gradients that were just computed, as a program is to see them; notes that they are this worker's own."""
    gradients = seen(gradients, variables)
    for gradient in gradients:
        values = values_of(gradient)
        if hasattr(values, "graph"):
            alike.note_own(values)
    return gradients


def _wrap_gradients(gradients: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(gradients)
    def wrapped(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        return _computed(gradients(ys, xs, *args, **kwargs), xs if isinstance(xs, (list, tuple)) else [xs])

    return wrapped


def _wrap_tape(gradient: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(gradient)
    def wrapped(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        made = gradient(self, target, sources, *args, **kwargs)
        return tf.nest.pack_sequence_as(sources, _computed(tf.nest.flatten(made), tf.nest.flatten(sources)))

    return wrapped
