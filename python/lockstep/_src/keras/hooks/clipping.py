"""Clipping by optimizers of Keras 3, whose gradients of tables are spread over the workers.

An optimizer clips a list of gradients. Each gradient of a table is noted as a part by its variable. Its history does
not suffice: an optimizer may sum gradients over several passes in variables of its own, for instance.

This module imports Keras; a scope imports it if the program has Keras 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockstep._src.engine.context import context
from lockstep._src.engine.thread_value import ThreadValue
from lockstep._src.gradients import norms
from lockstep._src.graph import parts
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around
from lockstep._src.tables.sharded import is_table

# The variables whose gradients an optimizer of this thread is applying.
_applied: ThreadValue[Sequence[Any]] = ThreadValue(())


def intercept_clipping(interception: Interception) -> None:
    """Makes optimizers of Keras 3 clip gradients of tables by the norms of all workers during the interception."""
    interception.replace(symbols.KERAS_BACKEND_APPLY, around(_apply))
    interception.replace(symbols.KERAS_CLIP, around(_clip))
    if context.world_size > 1:
        interception.replace(symbols.KERAS_GLOBAL_NORM, around(norms.global_norm))


def _apply(apply: Callable[..., Any], optimizer: Any, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> Any:
    with _applied.holding(trainable_variables):
        return apply(optimizer, grads, trainable_variables)


def _clip(clip: Callable[..., Any], optimizer: Any, grads: Sequence[Any]) -> Any:
    if context.world_size > 1 and len(grads) == len(_applied.value):
        for gradient, variable in zip(grads, _applied.value, strict=True):
            if gradient is not None and is_table(variable):
                parts.note(gradient)
    return clip(optimizer, grads)
