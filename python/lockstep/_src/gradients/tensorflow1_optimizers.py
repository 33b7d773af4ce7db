"""Optimizers of TensorFlow 1 (`tf.compat.v1.train.Optimizer`) that exchange gradients.

In a scope all of them do, with the scope's options. `ExchangingOptimizer` has settings of its own. In both cases the
same two wrappers replace `compute_gradients` and `apply_gradients`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.gradients.agreed_variables import Gradient
from lockstep._src.gradients.in_scope import ScopeUpdates
from lockstep._src.gradients.optimizers import OwnUpdates, exchanging_compute
from lockstep._src.gradients.settings import Exchange
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception

GradientsAndVariables = Sequence[tuple[Gradient, tf.Variable]]


def _updates_of(optimizer: Any) -> OwnUpdates | ScopeUpdates:
    return getattr(optimizer, "_lockstep_updates", None) or ScopeUpdates()


def _updates_where_computed(optimizer: Any) -> OwnUpdates | ScopeUpdates | None:
    # An optimizer that was made in a scope keeps the laziness of that time.
    own = getattr(optimizer, "_lockstep_updates", None)
    is_lazy = own is None and getattr(optimizer, "_lockstep_lazy", context.options.grad_lazy_sync)
    return None if is_lazy else _updates_of(optimizer)


def _once(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a wrapper that leaves a function unchanged which it has wrapped already."""

    def wrap_once(function: Any) -> Any:
        if getattr(function, "_lockstep", False):
            return function
        wrapped = wrap(function)
        wrapped._lockstep = True
        return wrapped

    return wrap_once


_wrap_compute = _once(functools.partial(exchanging_compute, updates_of=_updates_where_computed))


@_once
def _wrap_apply(apply_gradients: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `apply_gradients` to exchange gradients from elsewhere, for instance from tf.gradients."""

    @functools.wraps(apply_gradients)
    def wrapped(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = [v for _, v in pairs]

        def apply(gradients: list[Gradient]) -> Any:
            return apply_gradients(self, list(zip(gradients, variables, strict=True)), *args, **kwargs)

        def skip() -> Any:
            global_step = args[0] if args else kwargs.get("global_step")
            return None if global_step is None else global_step.assign_add(1, read_value=False)

        return _updates_of(self).apply([g for g, _ in pairs], variables, apply, skip)

    return wrapped


_WRAPS = {"compute_gradients": _wrap_compute, "apply_gradients": _wrap_apply}


def _late(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that exchanges, and calls the method that its class has at that time.

    A dynamic table that is made after the optimizer replaces methods of the class as well.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _WRAPS[name](getattr(type(self), name))(self, *args, **kwargs)

    return call


def intercept_optimizers(interception: Interception) -> None:
    """Makes every `tf.compat.v1.train.Optimizer` exchange its gradients during the interception.

    Existing classes are wrapped if they define `compute_gradients` or `apply_gradients` themselves, and new classes
    when they are defined. An optimizer that is created during the interception still exchanges after its end.
    """
    interception.replace(symbols.COMPUTE_GRADIENTS, _WRAPS["compute_gradients"])
    interception.replace(symbols.APPLY_GRADIENTS, _WRAPS["apply_gradients"])

    def init_subclass(previous: Any) -> Any:
        def wrap_new(cls: type, **kwargs: Any) -> None:
            previous(**kwargs)
            for name, wrap in _WRAPS.items():
                if name in vars(cls):
                    interception.replace_attribute(cls, name, wrap)

        return classmethod(wrap_new)

    interception.replace(symbols.OPTIMIZER_SUBCLASS, init_subclass)

    def init(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self.__dict__.setdefault("_lockstep_lazy", context.options.grad_lazy_sync)
            for name in _WRAPS:
                # The object keeps this method when the class gets its own method back.
                setattr(self, name, types.MethodType(_late(name, getattr(type(self), name)), self))

        return wrapped

    interception.replace(symbols.OPTIMIZER_INIT, init)


def exchange_in(optimizer: type, lazy: bool | None = None) -> None:
    """Makes a class of optimizers exchange its gradients permanently, in a scope or not.

    Args:
      optimizer: a subclass of `tf.compat.v1.train.Optimizer`, which is changed.
      lazy: whether to exchange only in `apply_gradients`; None: according to `grad_lazy_sync` when gradients are
        computed.
    """
    for name, wrap in _WRAPS.items():
        setattr(optimizer, name, wrap(getattr(optimizer, name)))
    if lazy is not None:
        with_options: Any = optimizer
        with_options._lockstep_lazy = lazy


class OptimizerWrapper(tf.compat.v1.train.Optimizer):
    """Base of optimizers that wrap another one; slots and variables belong to the wrapped one."""

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer, name: str, use_locking: bool) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer

    @tf.autograph.experimental.do_not_convert
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Returns the gradients of this rank."""
        return list(self._optimizer.compute_gradients(*args, **kwargs))

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a slot of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """Returns the slot names of the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> list[tf.Variable]:
        """Returns the variables of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def variables_of_graph() -> Sequence[tf.Variable] | None:
    """Returns a graph's variables in the order of their creation, in TensorFlow 1; None elsewhere."""
    return None if tf.compat.v1.executing_eagerly_outside_functions() else tf.compat.v1.trainable_variables()


class ExchangingOptimizer(OptimizerWrapper):
    """Exchanges gradients when they are computed, and gradients from elsewhere in `apply_gradients`.

    Args:
      optimizer: the wrapped optimizer, which applies the gradients.
      exchange: the settings of the exchange.
      name: the names of exchanges begin with it.
      use_locking: as in `tf.compat.v1.train.Optimizer`.
    """

    def __init__(
        self, optimizer: tf.compat.v1.train.Optimizer, exchange: Exchange, name: str, use_locking: bool = False
    ) -> None:
        super().__init__(optimizer, name, use_locking)
        self._lockstep_updates = OwnUpdates(exchange, name)
        self._lockstep_updates.exchange.order = variables_of_graph

    def register_local_var(self, var: tf.Variable) -> None:
        """Keeps gradients of `var` on this rank from now on."""
        self._lockstep_updates.exchange.local.add(var)

    @tf.autograph.experimental.do_not_convert
    @_wrap_compute
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Gradient, tf.Variable]]:
        """Returns exchanged gradients of the wrapped optimizer, and their variables."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    @tf.autograph.experimental.do_not_convert
    @_wrap_apply
    def apply_gradients(
        self, grads_and_vars: GradientsAndVariables, global_step: tf.Variable | None = None, name: str | None = None
    ) -> Any:
        """Applies gradients; those that were not exchanged are exchanged first."""
        return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)
