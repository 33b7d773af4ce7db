"""Replaces the methods with which optimizers of Keras 2 apply sparse gradients, by the rules of these optimizers.

Optimizers since Keras 2.11 have Keras 3's rules (`keras_rules.py`). The optimizers of `tf.keras.optimizers.legacy`
have TensorFlow 1's rules with another momentum and other epsilons.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables.updates import keras_rules
from lockstep._src.tables.updates.apply import apply_rule
from lockstep._src.tables.updates.rules import Rule, Slot, has_method_of

# The class that defines an `update_step` -> the rule of this method. Each has a row in `symbols.KERAS_2_UPDATE_STEPS`.
_DESCRIPTIONS: dict[str, keras_rules.Description] = {
    "SGD": keras_rules.sgd_with_slot,
    "Adagrad": keras_rules.adagrad,
    "Adam": keras_rules.adam,
    "AdamW": keras_rules.adam,
    "Ftrl": keras_rules.ftrl,
    "RMSprop": keras_rules.rmsprop,
}


def intercept_updates(interception: Interception, keras: ModuleType) -> None:
    """Makes optimizers of Keras 2 apply sparse gradients by fused updates during the interception.

    Args:
      interception: holds the replacements.
      keras: the package, `keras` or `tf_keras`.
    """
    for name, describe in _DESCRIPTIONS.items():
        hook = symbols.KERAS_2_UPDATE_STEPS[name].of(keras.__name__)
        interception.replace(hook, functools.partial(_wrap_update_step, describe))
    for hook in symbols.KERAS_2_LEGACY_APPLY:
        interception.replace(hook.of(keras.__name__), functools.partial(_wrap_sparse, keras))


def rule_of(optimizer: Any, keras: ModuleType) -> Rule | None:
    """Returns the rule by which an optimizer applies sparse gradients; None if none is known.

    Args:
      optimizer: an optimizer of Keras 2 that is not a legacy one; its learning rate is up to date.
      keras: the package, `keras` or `tf_keras`.
    """
    # An SGD without momentum needs no slot, though Keras gives it one.
    descriptions = {**_DESCRIPTIONS, "SGD": keras_rules.sgd}
    for name, describe in descriptions.items():
        if has_method_of(optimizer, _class(keras, f"{name.lower()}.{name}"), "update_step"):
            return describe(optimizer, optimizer.learning_rate)
    return None


# The values that a legacy optimizer has computed for a step.
Coefficients = dict[str, tf.Tensor]


def legacy_rule_of(optimizer: Any, prepared: Callable[[], Coefficients], keras: ModuleType) -> Rule | None:
    """Returns the rule by which a legacy optimizer applies sparse gradients; None if none is known.

    Args:
      optimizer: a legacy optimizer of Keras 2.
      prepared: returns the values that it has computed for a step.
      keras: the package, `keras` or `tf_keras`.
    """
    for name, describe in _LEGACY.items():
        cls = _class(keras, f"legacy.{name}")
        if isinstance(optimizer, cls) and has_method_of(optimizer, cls, "_resource_apply_sparse"):
            return describe(optimizer, prepared())
    return None


def _class(keras: ModuleType, name: str) -> type:
    module, _, name = name.rpartition(".")
    return getattr(importlib.import_module(f"{keras.__name__}.src.optimizers.{module}"), name)


def _wrap_update_step(describe: keras_rules.Description, update_step: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(update_step)
    def wrapped(self: Any, gradient: Any, variable: Any) -> None:
        if context.options.fused_updates and isinstance(gradient, tf.IndexedSlices):
            rule = describe(self, self.learning_rate)
            if rule is not None and apply_rule(rule, variable, gradient.values, gradient.indices) is not None:
                return
        update_step(self, gradient, variable)

    return wrapped


def _rule(
    o: Any, name: str, slots: Mapping[str, float], hyperparameters: Mapping[str, Any], all_rows: bool = False
) -> Rule:
    """Returns a rule; slots are given by name and initial value."""
    return Rule(o, name, tuple(map(Slot, slots, slots.values())), lambda: hyperparameters, o.get_slot, all_rows)


def _sgd(o: Any, c: Coefficients) -> Rule:
    if not o._momentum:
        return _rule(o, "sgd", {}, {"learning_rate": c["lr_t"]})
    name = "keras_nesterov" if o.nesterov else "keras_momentum"
    return _rule(o, name, {"momentum": 0.0}, {"learning_rate": c["lr_t"], "momentum": c["momentum"]})


def _adagrad(o: Any, c: Coefficients) -> Rule:
    slots = {"accumulator": o._initial_accumulator_value}
    return _rule(o, "adagrad", slots, {"learning_rate": c["lr_t"], "epsilon": c["epsilon"]})


def _adam(o: Any, c: Coefficients) -> Rule | None:
    hyperparameters = {
        "learning_rate": c["lr_t"],
        "beta1": c["beta_1_t"],
        "beta2": c["beta_2_t"],
        "epsilon": c["epsilon"],
        "beta1_power": c["beta_1_power"],
        "beta2_power": c["beta_2_power"],
    }
    return None if o.amsgrad else _rule(o, "adam", {"m": 0.0, "v": 0.0}, hyperparameters, all_rows=True)


def _ftrl(o: Any, c: Coefficients) -> Rule:
    hyperparameters = {
        "learning_rate": c["lr_t"],
        "learning_rate_power": c["learning_rate_power"],
        "l1": c["l1_regularization_strength"],
        "l2": c["l2_regularization_strength"] + c["beta"] / (2.0 * c["lr_t"]),
        "l2_shrinkage": c["l2_shrinkage_regularization_strength"],
    }
    return _rule(o, "ftrl", {"accumulator": o._initial_accumulator_value, "linear": 0.0}, hyperparameters)


def _rmsprop(o: Any, c: Coefficients) -> Rule | None:
    if not o._momentum:
        # It decays all rows, and adds epsilon after the root. No rule does this.
        return None
    slots = dict.fromkeys(["rms", "momentum", "mg"] if o.centered else ["rms", "momentum"], 0.0)
    hyperparameters = {"learning_rate": c["lr_t"]} | {
        name: c[name] for name in ("rho", "momentum", "epsilon", "one_minus_rho")
    }
    return _rule(o, "centered_rms_prop" if o.centered else "rms_prop", slots, hyperparameters)


_LEGACY: dict[str, Callable[[Any, Coefficients], Rule | None]] = {
    "gradient_descent.SGD": _sgd,
    "adagrad.Adagrad": _adagrad,
    "adam.Adam": _adam,
    "ftrl.Ftrl": _ftrl,
    "rmsprop.RMSprop": _rmsprop,
}


def _wrap_sparse(keras: ModuleType, apply_sparse: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method of legacy optimizers that gets gradients with duplicates: the base's, or an override of it."""

    @functools.wraps(apply_sparse)
    def wrapped(self: Any, grad: tf.Tensor, handle: Any, indices: tf.Tensor, **kwargs: Any) -> Any:
        if context.options.fused_updates:
            key = (handle.device, handle.dtype.base_dtype)
            rule = legacy_rule_of(
                self, lambda: kwargs.get("apply_state", {}).get(key) or self._fallback_apply_state(*key), keras
            )
            applied = None if rule is None else apply_rule(rule, handle, grad, indices)
            if applied is not None:
                return applied
        return apply_sparse(self, grad, handle, indices, **kwargs)

    return wrapped
