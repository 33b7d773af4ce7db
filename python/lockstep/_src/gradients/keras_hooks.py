"""Hooks in Keras, so that its own classes work with optimizers that exchange gradients.

Other optimizers are not changed. If a callback cannot write its file, this is an error, and not the end of the data.
This module only uses Keras packages that are loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from lockstep._src.engine import file_errors
from lockstep._src.gradients.graphs import Track
from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook import Hook
from lockstep._src.hooks.interception import Interception, around


def is_exchanging(optimizer: Any) -> bool:
    """Returns whether an optimizer of Keras exchanges gradients by name."""
    return hasattr(type(optimizer), "apply_exchanged")


def root_of(cls: type) -> str:
    """Returns the Keras package from which a class is derived: "keras" or "tf_keras"."""
    roots = (base.__module__.partition(".")[0] for base in cls.__mro__)
    return next(root for root in roots if root in ("keras", "tf_keras"))


def tracker(cls: type) -> Track | None:
    """Returns Keras 2's function that makes its session initialize a variable in a graph; None in other versions."""
    return getattr(sys.modules.get(f"{root_of(cls)}.src.backend"), "track_variable", None)


def intercept_keras3(interception: Interception) -> None:
    """Hooks loss scales, errors of callbacks, arguments of `compile`, and the choice of XLA for models on GPUs."""
    _intercept(interception, [symbols.KERAS_SCALED_APPLY], [symbols.KERAS_SCALED_INIT], symbols.KERAS_CALLBACKS)
    interception.replace(symbols.AUTO_JIT, around(_resolve_jit))
    interception.replace(symbols.KERAS_COMPILE, around(_compile))


@functools.cache
def intercepts_keras2(root: str) -> Callable[[Interception], None]:
    """Returns a function that hooks loss scales and errors of callbacks of the Keras package `root`."""

    def intercept(interception: Interception) -> None:
        rows = (symbols.KERAS_2_SCALED_APPLY, symbols.KERAS_2_SCALED_INIT, symbols.KERAS_2_CALLBACKS)
        _intercept(interception, *([hook.of(root) for hook in hooks] for hooks in rows))

    return intercept


def _intercept(
    interception: Interception, applies: Iterable[Hook], inits: Iterable[Hook], callbacks: Iterable[Hook]
) -> None:
    for hook in applies:
        interception.replace(hook, _exchanging_first)
    for hook in inits:
        interception.replace(hook, around(_init_loss_scale))
    file_errors.intercept_callbacks(interception, callbacks)


def _exchanging_first(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `apply` of a `LossScaleOptimizer` to exchange before it checks whether gradients are finite.

    Keras calls the inner optimizer only on ranks with finite gradients; without this, they would wait for the others in
    vain.
    """

    @functools.wraps(apply)
    @tf.autograph.experimental.do_not_convert
    def wrapped(outer: Any, *args: Any, **kwargs: Any) -> Any:
        inner, own = outer.inner_optimizer, functools.partial(apply, outer)
        return inner.apply_exchanged(outer, own, *args, **kwargs) if is_exchanging(inner) else own(*args, **kwargs)

    return wrapped


def _init_loss_scale(init: Callable[..., None], outer: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
    """Constructs a `LossScaleOptimizer`, and marks its inner optimizer: steps may be skipped."""
    init(outer, inner_optimizer, *args, **kwargs)
    if is_exchanging(inner_optimizer):
        inner_optimizer.expect_skipped_steps()


def _resolve_jit(resolve: Callable[[Any], bool], model: Any) -> bool:
    """Returns whether XLA compiles a model whose `jit_compile` is "auto"; XLA cannot compile exchanges."""
    optimizer = getattr(model, "optimizer", None)
    exchanges = is_exchanging(optimizer) or is_exchanging(getattr(optimizer, "inner_optimizer", None))
    return not exchanges and resolve(model)


def _compile(compile_model: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compiles a model without an argument of Horovod's programs that has no effect since TensorFlow 2.2."""
    kwargs.pop("experimental_run_tf_function", None)
    return compile_model(*args, **kwargs)
