"""Hooks in Keras, so that its own classes work with optimizers that exchange gradients.

Other optimizers are not changed. If a callback cannot write its file, this is an error, and not the end of the data.
This module only uses Keras packages that are loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.engine import file_errors
from lockstep._src.gradients.graphs import Track
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception

IsExchanging = Callable[[Any], bool]


def root_of(cls: type) -> str:
    """Returns the Keras package from which a class is derived: "keras" or "tf_keras"."""
    roots = (base.__module__.partition(".")[0] for base in cls.__mro__)
    return next(root for root in roots if root in ("keras", "tf_keras"))


def tracker(cls: type) -> Track | None:
    """Returns Keras 2's function that makes its session initialize a variable in a graph; None in other versions."""
    return getattr(sys.modules.get(f"{root_of(cls)}.src.backend"), "track_variable", None)


def intercept_keras3(interception: Interception, is_exchanging: IsExchanging) -> None:
    """Hooks loss scales, errors of callbacks, and the choice of XLA for models on GPUs."""
    interception.replace(symbols.KERAS_SCALED_APPLY, functools.partial(_wrap_apply, is_exchanging))
    file_errors.intercept_callbacks(interception, symbols.KERAS_CALLBACKS)
    interception.replace(symbols.KERAS_SCALED_INIT, functools.partial(_tell_of_skipped_steps, is_exchanging))
    interception.replace(symbols.AUTO_JIT, functools.partial(_wrap_resolve, is_exchanging))


def intercept_keras2(interception: Interception, root: str, is_exchanging: IsExchanging) -> None:
    """Hooks loss scales and errors of callbacks of the Keras package `root`."""
    for hook in symbols.KERAS_2_SCALED_APPLY:
        interception.replace(hook.of(root), functools.partial(_exchanging_first, is_exchanging))
    for hook in symbols.KERAS_2_SCALED_INIT:
        interception.replace(hook.of(root), functools.partial(_tell_of_skipped_steps, is_exchanging))
    file_errors.intercept_callbacks(interception, [hook.of(root) for hook in symbols.KERAS_2_CALLBACKS])


def _wrap_apply(is_exchanging: IsExchanging, apply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    @tf.autograph.experimental.do_not_convert
    def exchange_and_apply(outer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        inner = outer.inner_optimizer
        if not is_exchanging(inner):
            return apply(outer, grads, trainable_variables)

        def apply_all(gradients: list[Any]) -> None:
            apply(outer, gradients, trainable_variables)

        return inner.apply_exchanged(outer, grads, trainable_variables, apply_all)

    return exchange_and_apply


def _wrap_resolve(is_exchanging: IsExchanging, resolve: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @functools.wraps(resolve)
    def resolve_or_not(model: Any) -> bool:
        # This decides for "auto"; XLA cannot compile exchanges.
        optimizer = getattr(model, "optimizer", None)
        if is_exchanging(optimizer) or is_exchanging(getattr(optimizer, "inner_optimizer", None)):
            return False
        return resolve(model)

    return resolve_or_not


def _exchanging_first(is_exchanging: IsExchanging, apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `apply` of a `LossScaleOptimizer` to exchange before it checks whether gradients are finite.

    Keras calls the inner optimizer only on ranks with finite gradients; without this, they would wait for the others in
    vain.
    """

    @functools.wraps(apply)
    @tf.autograph.experimental.do_not_convert
    def wrapped(outer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        inner = outer.inner_optimizer
        if not is_exchanging(inner):
            return apply(outer, grads_and_vars, *args, **kwargs)
        return inner.apply_exchanged(grads_and_vars, lambda pairs: apply(outer, pairs, *args, **kwargs))

    return wrapped


def _tell_of_skipped_steps(is_exchanging: IsExchanging, init: Callable[..., None]) -> Callable[..., None]:
    """Wraps the constructor of a `LossScaleOptimizer` to tell its inner optimizer that steps may be skipped."""

    @functools.wraps(init)
    def wrapped(outer: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        init(outer, inner_optimizer, *args, **kwargs)
        if is_exchanging(inner_optimizer):
            inner_optimizer._updates.exchange.skips_steps = True

    return wrapped
