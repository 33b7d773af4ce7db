"""Replaces the function with which optimizers of TensorFlow 1 apply sparse gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables.updates.dispatch import apply_sparse


def intercept_updates(interception: Interception) -> None:
    """Makes optimizers of `tf.compat.v1.train` apply sparse gradients by fused updates during the interception.

    The replaced function is called once for each variable, before the optimizer's own methods.
    """
    interception.replace(symbols.UPDATE_OP, _wrap_update)


def _wrap_update(update_op: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update_op)
    def wrapped(self: Any, optimizer: Any, g: Any) -> Any:
        # TensorFlow refuses sparse gradients of variables with constraints.
        if context.options.fused_updates and isinstance(g, tf.IndexedSlices) and self._v.constraint is None:
            applied = apply_sparse(optimizer, self._v, g.values, g.indices)
            if applied is not None:
                return applied
        return update_op(self, optimizer, g)

    return wrapped
