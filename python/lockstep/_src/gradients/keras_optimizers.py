"""Optimizers of Keras 3 and Keras 2 that exchange gradients by name.

AutoGraph must not convert these functions, because a program's `tf.function` would then need seconds to trace them.

The class of an optimizer is changed to a new subclass of its own class with the same name. So files with the optimizer
can be loaded without this library. This module does not import Keras.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import tensorflow as tf

from lockstep._src.collectives import named_job
from lockstep._src.engine import program_end
from lockstep._src.gradients import keras_hooks, optimizer_copies
from lockstep._src.gradients.agreed_variables import Gradient
from lockstep._src.gradients.keras_hooks import is_exchanging
from lockstep._src.gradients.optimizers import OwnUpdates, exchanging_compute
from lockstep._src.gradients.settings import Exchange
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception

if TYPE_CHECKING:
    from keras.optimizers import Optimizer
else:
    Optimizer = object  # the optimizer's own class comes behind `_Exchanging`

_UPDATES = "_lockstep_updates"


class _Exchanging(Optimizer):
    """The base of exchanging optimizers of all versions of Keras; it precedes the optimizer's class."""

    _lockstep_exchange: ClassVar[Exchange]
    _lockstep_name: ClassVar[str]
    # The optimizer's own class.
    _lockstep_base: ClassVar[type]

    @property
    def _updates(self) -> OwnUpdates:
        # Created at first use, because Keras creates optimizers in several ways; `vars` hides it from checkpoints.
        if _UPDATES not in vars(self):
            updates = OwnUpdates(self._lockstep_exchange, self._lockstep_name, keras_hooks.tracker(self._lockstep_base))
            updates.exchange.skips_steps = hasattr(self, "inner_optimizer")
            updates.exchange.order = self._known_variables
            self.__dict__[_UPDATES] = updates
            program_end.counts_steps(self)
        return vars(self)[_UPDATES]

    @property
    def _agg_helper(self) -> Any:
        """The sums over several passes, under the name by which Horovod's tests access their `counter`."""
        return self._updates.passes

    def register_local_var(self, var: Any) -> None:
        """Keeps gradients of `var` on this rank from now on."""
        self._updates.exchange.local.add(var)

    def register_local_layer(self, layer: Any) -> None:
        """Keeps gradients of a layer's weights on this rank from now on, also of weights that it creates later."""
        self._updates.exchange.local.add_layer(layer)

    def expect_skipped_steps(self) -> None:
        """Prepares for an outer optimizer that skips steps whose gradients are not finite."""
        self._updates.exchange.skips_steps = True

    def _known_variables(self) -> Sequence[Any] | None:
        # Optimizers of Keras 2 do not remember the variables with which they were built.
        return None

    def _count_pass(self) -> Any:
        # Learning rate schedules count passes, also those that update nothing.
        return _iterations(self).assign_add(1)


class CallableList(list):
    """The list of an optimizer's variables, which programs may also call, as in Keras 2."""

    def __call__(self) -> list[Any]:
        """Returns the list itself."""
        return self


def apply_keras3(
    optimizer: Any,
    apply: Callable[..., Any],
    grads: Sequence[Gradient],
    trainable_variables: Sequence[Any] | None,
    update: Callable[[list[Gradient], list[Any], Callable[[list[Gradient]], Any]], Any],
) -> Any:
    """Applies gradients by `apply` of an optimizer of Keras 3.

    `update(gradients, variables, apply_all)` exchanges gradients, and calls `apply_all` with the results.
    Keras itself answers a call without gradients, or with gradients of unknown variables.
    """
    variables = trainable_variables
    if variables is None and optimizer.built:
        variables = optimizer._trainable_variables
    if not grads or variables is None:
        return apply(list(grads), trainable_variables)
    return update(list(grads), list(variables), lambda gradients: apply(gradients, trainable_variables))


class _Keras3(_Exchanging):
    @property
    def variables(self) -> CallableList:
        """The optimizer's variables, as a list that may also be called."""
        return CallableList(super().variables)

    def _known_variables(self) -> Sequence[Any] | None:
        return self._trainable_variables if self.built else None

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Gradient], trainable_variables: Sequence[Any] | None = None) -> None:
        """Exchanges gradients and applies them."""
        self.apply_exchanged(self, super().apply, grads, trainable_variables)

    def apply_exchanged(
        self,
        outer: Any,
        apply: Callable[..., None],
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Any] | None = None,
    ) -> None:
        """Exchanges gradients, and applies them by `apply` of `outer`: this optimizer or one that wraps it."""

        def update(gradients: list[Gradient], variables: list[Any], apply_all: Callable[..., Any]) -> None:
            def build() -> None:
                if not outer.built:
                    outer.build(variables)
                    outer.built = True

            self._updates.apply(gradients, variables, apply_all, self._count_pass, build)

        apply_keras3(outer, apply, grads, trainable_variables, update)


class _Keras2(_Exchanging):
    @tf.autograph.experimental.do_not_convert
    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Gradient, Any]]:
        """Returns gradients to apply, and their variables."""
        return self._compute_gradients(loss, var_list, None, tape)

    @tf.autograph.experimental.do_not_convert
    @functools.partial(exchanging_compute, updates_of=lambda optimizer: optimizer._updates)
    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Gradient, Any]]:
        # Legacy optimizers have this method, and Horovod adds it to all.
        if _is_legacy(self):
            return super()._compute_gradients(loss, var_list, grad_loss, tape)
        if grad_loss is not None:
            raise ValueError(f"{self.name}: only legacy optimizers take grad_loss")
        return super().compute_gradients(loss, var_list, tape=tape)

    @tf.autograph.experimental.do_not_convert
    def get_gradients(self, loss: Any, params: Any) -> list[Gradient]:
        """Returns gradients to apply, if the optimizer's class has this method."""
        params = tf.nest.flatten(params)
        gradients = super().get_gradients(loss, params)
        return self._updates.steps.exchange(gradients, params, self._updates.computed(gradients, params))

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies gradients; those that were not exchanged are exchanged first."""
        return self.apply_exchanged(self, super().apply_gradients, grads_and_vars, *args, **kwargs)

    def apply_exchanged(
        self, outer: Any, apply: Callable[..., Any], grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Exchanges gradients, and applies them by `apply`, of this optimizer or of one that wraps it."""
        pairs = list(grads_and_vars)
        if not pairs:
            return apply(pairs, *args, **kwargs)
        variables = [v for _, v in pairs]

        def apply_all(gradients: list[Gradient]) -> Any:
            return apply(list(zip(gradients, variables, strict=True)), *args, **kwargs)

        def build() -> None:
            make_variables = self._create_all_weights if _is_legacy(self) else self.build
            with tf.init_scope():
                make_variables(variables)

        return self._updates.apply([g for g, _ in pairs], variables, apply_all, self._count_pass, build)


def apply_after_exchange(optimizer: Any, pairs: Sequence[tuple[Gradient, Any]], apply: Callable[..., Any]) -> Any:
    """Applies gradients by `apply`, after the exchange if `optimizer`, one of Keras 2, exchanges.

    Args:
      optimizer: the optimizer. If `apply` calls its `apply_gradients`, that exchanges no gradient again.
      pairs: the gradients, and their variables.
      apply: takes pairs.
    """
    if not isinstance(optimizer, _Keras2):
        return apply(list(pairs))
    variables = [v for _, v in pairs]

    def apply_all(gradients: list[Gradient]) -> Any:
        return apply(list(zip(gradients, variables, strict=True)))

    return optimizer._updates.apply([g for g, _ in pairs], variables, apply_all, optimizer._count_pass)


def _is_legacy(optimizer: Any) -> bool:
    """Returns whether an optimizer is one of `keras.optimizers.legacy` in Keras 2."""
    return hasattr(optimizer, "_create_all_weights")


def _mixin(optimizer: Any) -> type:
    if hasattr(optimizer, "stateless_apply"):
        return _Keras3
    if _is_legacy(optimizer) or hasattr(optimizer, "compute_gradients"):
        return _Keras2
    raise TypeError(f"got {optimizer!r}, wanted an optimizer of Keras or of tf.compat.v1.train")


def _to_legacy(optimizer: Any) -> Any:
    """Returns the legacy optimizer that Keras 2 uses if TensorFlow 2's behaviour is switched off."""
    for cls in type(optimizer).__mro__:
        package, _, module = cls.__module__.rpartition(".")
        if module == "optimizer" and hasattr(sys.modules.get(package), "convert_to_legacy_optimizer"):
            return sys.modules[package].convert_to_legacy_optimizer(optimizer)
    raise TypeError(f"got {optimizer!r}, wanted a legacy optimizer, as TensorFlow 2's behaviour is switched off")


def _public_module(cls: type) -> str:
    """Returns the module name that is saved with a class; for Keras' own classes the public one."""
    module = cls.__module__
    if module.startswith("keras.src.optimizers"):
        from_keras = sys.modules.get("keras.src.api_export")
        public = from_keras and from_keras.get_name_from_symbol(cls)
        if public:
            return public.rpartition(".")[0]
    return module


def make_exchanging(optimizer: Any, exchange: Exchange, name: str | None = None) -> Any:
    """Returns an optimizer like this one that exchanges gradients before it applies them.

    Args:
      optimizer: an optimizer of Keras 3, or of Keras 2 (`keras.optimizers` there, or `keras.optimizers.legacy`). If it
        has state (it has been built, or loaded), the new one takes this state over, and the old one must not be used
        any more. Otherwise the new one is a copy, with all attributes. An exchanging optimizer counts as its original
        class.
      exchange: the settings.
      name: the names of exchanges begin with it; by default "Distributed" and the class's name.

    Returns:
      An optimizer of a subclass with the same name, with `register_local_var`.

    Raises:
      TypeError: the argument is not an optimizer of Keras.
    """
    mixin = _mixin(optimizer)
    if mixin is _Keras2 and not _is_legacy(optimizer) and not tf.__internal__.tf2.enabled():
        # Keras would convert it when a model is compiled with it, and drop this module's methods.
        optimizer = _to_legacy(optimizer)
    base = type(optimizer)._lockstep_base if is_exchanging(optimizer) else type(optimizer)
    members = {
        "__doc__": base.__doc__,
        "__module__": _public_module(base),
        "_lockstep_exchange": exchange,
        "_lockstep_name": name or f"Distributed{base.__name__}",
        "_lockstep_base": base,
    }
    cls = types.new_class(base.__name__, (mixin, base), exec_body=lambda namespace: namespace.update(members))
    is_keras3, root = mixin is _Keras3, keras_hooks.root_of(base)
    named_job.hooks.add(keras_hooks.intercept_keras3 if is_keras3 else keras_hooks.intercepts_keras2(root))
    # Variables of a graph cannot be copied.
    if _has_state(optimizer) or not tf.executing_eagerly():
        made: Any = object.__new__(cls)
        vars(made).update(vars(optimizer))
    else:
        made = optimizer_copies.copied(optimizer, cls)
    vars(made).pop(_UPDATES, None)
    inner: Any = getattr(made, "inner_optimizer", None)
    if is_exchanging(inner):
        # A LossScaleOptimizer contains its inner optimizer, which must not exchange as well.
        inner.__class__ = inner._lockstep_base
        vars(inner).pop(_UPDATES, None)
    return made


def _has_state(optimizer: Any) -> bool:
    # A LossScaleOptimizer's state is in its inner one. The attributes belong to Keras 3, Keras 2, and legacy.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return any(bool(getattr(optimizer, name, None)) for name in ("built", "_built", "_weights"))


def _iterations(optimizer: Any) -> Any:
    """Returns the variable that counts updates."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    found = getattr(optimizer, "_iterations", None)
    return optimizer.iterations if found is None else found


def make_variables_callable() -> None:
    """Makes `variables` of all optimizers of Keras 3 a list that may also be called, if Keras 3 is loaded.

    This is for programs that call `optimizer.variables()`, as in Horovod's documents. It lasts as long as the job.
    """
    if "keras.src.optimizers.loss_scale_optimizer" in sys.modules:
        named_job.hooks.add(_intercept_variables)


def _intercept_variables(interception: Interception) -> None:
    for hook in symbols.KERAS_OPTIMIZER_VARIABLES:
        interception.replace(hook, _wrap_variables)


def _wrap_variables(variables: property) -> property:
    getter = variables.fget
    assert getter is not None
    return property(functools.wraps(getter)(lambda self: CallableList(getter(self))))
