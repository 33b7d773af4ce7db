"""What is changed in Keras itself, so that its own classes do right by optimizers that exchange gradients.

Nothing changes for other optimizers. Files that callbacks cannot write are errors, and never taken for the end of data.
Imports no Keras that is not loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.engine import failures
from lockstep._src.gradients.graphs import Track
from lockstep._src.hooks.interception import Interception

IsExchanging = Callable[[Any], bool]


def root_of(cls: type) -> str:
    """The package of the Keras that a class stems from: "keras" or "tf_keras"."""
    roots = (base.__module__.partition(".")[0] for base in cls.__mro__)
    return next(root for root in roots if root in ("keras", "tf_keras"))


def tracker(cls: type) -> Track | None:
    """Has the session of Keras 2 initialize a variable in a graph of TensorFlow 1; None where Keras has no sessions."""
    return getattr(sys.modules.get(f"{root_of(cls)}.src.backend"), "track_variable", None)


@functools.cache
def patch_keras3(is_exchanging: IsExchanging) -> None:
    """Loss scales, callbacks' errors, and models that compile their steps by XLA where there is a GPU."""
    from keras.src.callbacks.callback_list import CallbackList
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
    from keras.src.trainers.trainer import Trainer

    apply, resolve = LossScaleOptimizer.apply, getattr(Trainer, "_resolve_auto_jit_compile", None)

    @functools.wraps(apply)
    @tf.autograph.experimental.do_not_convert
    def exchange_and_apply(outer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        inner = outer.inner_optimizer
        if not is_exchanging(inner):
            return apply(outer, grads, trainable_variables)

        def apply_all(gradients: list[Any]) -> None:
            apply(outer, gradients, trainable_variables)

        return inner.apply_exchanged(outer, grads, trainable_variables, apply_all)

    LossScaleOptimizer.apply = exchange_and_apply
    failures.intercept_callbacks(Interception(), CallbackList)
    _tell_of_skipped_steps(LossScaleOptimizer, is_exchanging)
    if resolve is not None:

        @functools.wraps(resolve)
        def resolve_or_not(model: Any) -> bool:
            # "auto"; XLA cannot compile exchanges.
            optimizer = getattr(model, "optimizer", None)
            if is_exchanging(optimizer) or is_exchanging(getattr(optimizer, "inner_optimizer", None)):
                return False
            return resolve(model)

        Trainer._resolve_auto_jit_compile = resolve_or_not


@functools.cache
def patch_keras2(root: str, is_exchanging: IsExchanging) -> None:
    """Loss scales and callbacks' errors of the Keras in the package `root`."""
    module = sys.modules[f"{root}.src.mixed_precision.loss_scale_optimizer"]
    for cls in (module.LossScaleOptimizer, module.LossScaleOptimizerV3):
        cls.apply_gradients = _exchanging_first(cls.apply_gradients, is_exchanging)
        _tell_of_skipped_steps(cls, is_exchanging)
    failures.intercept_callbacks(Interception(), sys.modules[f"{root}.src.callbacks"].CallbackList)


def _exchanging_first(apply: Callable[..., Any], is_exchanging: IsExchanging) -> Callable[..., Any]:
    """Exchanges before a `LossScaleOptimizer` looks whether gradients are finite.

    Keras calls the optimizer inside on ranks alone whose own gradients are: the others would be waited for in vain.
    """

    @functools.wraps(apply)
    @tf.autograph.experimental.do_not_convert
    def wrapped(outer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        inner = outer.inner_optimizer
        if not is_exchanging(inner):
            return apply(outer, grads_and_vars, *args, **kwargs)
        return inner.apply_exchanged(grads_and_vars, lambda pairs: apply(outer, pairs, *args, **kwargs))

    return wrapped


def _tell_of_skipped_steps(cls: type, is_exchanging: IsExchanging) -> None:
    """Has the optimizer in a `LossScaleOptimizer` know that steps may be skipped."""
    init = cls.__init__

    @functools.wraps(init)
    def wrapped(outer: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        init(outer, inner_optimizer, *args, **kwargs)
        if is_exchanging(inner_optimizer):
            inner_optimizer._updates.reducer.skips_steps = True

    cls.__init__ = wrapped
