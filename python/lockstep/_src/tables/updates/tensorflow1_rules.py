"""The rules of `tf.compat.v1.train`'s optimizers, in terms of their slots and of the tensors that they prepare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.tables.updates.lazy_adam import LazyAdamOptimizer
from lockstep._src.tables.updates.rules import Rule, Slot, has_method_of

_train = tf.compat.v1.train


def _rule(
    optimizer: Any, name: str, slots: Sequence[Slot], hyperparameters: Callable[[], Mapping[str, Any]], **kwargs: Any
) -> Rule:
    return Rule(optimizer, name, tuple(slots), hyperparameters, optimizer.get_slot, **kwargs)


def _gradient_descent(o: Any) -> Rule:
    return _rule(o, "sgd", [], lambda: {"learning_rate": o._learning_rate_tensor})


def _momentum(o: Any) -> Rule:
    def hyperparameters() -> dict[str, Any]:
        return {"learning_rate": o._learning_rate_tensor, "momentum": o._momentum_tensor}

    name = "nesterov" if o._use_nesterov else "momentum"
    return _rule(o, name, [Slot("momentum", 0.0)], hyperparameters)


def _adagrad(o: Any) -> Rule:
    slots = [Slot("accumulator", o._initial_accumulator_value)]
    return _rule(o, "adagrad", slots, lambda: {"learning_rate": o._learning_rate_tensor, "epsilon": 0.0})


def _adam(o: Any) -> Rule:
    """Returns a rule for all rows, unless it is lazy: TensorFlow also decays the moments of untouched rows."""

    def hyperparameters() -> dict[str, Any]:
        beta1_power, beta2_power = o._get_beta_accumulators()
        return {
            "learning_rate": o._lr_t,
            "beta1": o._beta1_t,
            "beta2": o._beta2_t,
            "epsilon": o._epsilon_t,
            "beta1_power": beta1_power,
            "beta2_power": beta2_power,
        }

    is_lazy = isinstance(o, LazyAdamOptimizer)
    return _rule(o, "adam", [Slot("m", 0.0), Slot("v", 0.0)], hyperparameters, all_rows=not is_lazy)


def _ftrl(o: Any) -> Rule:
    """Returns the rule. The adjusted strength of l2 includes `beta`; a shrinkage of 0 has no effect."""

    def hyperparameters() -> dict[str, Any]:
        return {
            "learning_rate": o._learning_rate_tensor,
            "learning_rate_power": o._learning_rate_power_tensor,
            "l1": o._l1_regularization_strength_tensor,
            "l2": o._adjusted_l2_regularization_strength_tensor,
            "l2_shrinkage": o._l2_shrinkage_regularization_strength_tensor,
        }

    return _rule(o, "ftrl", [Slot("accum", o._initial_accumulator_value), Slot("linear", 0.0)], hyperparameters)


def _rms_prop(o: Any) -> Rule:
    slots = [Slot("rms", 1.0), Slot("momentum", 0.0)]
    if o._centered:
        slots.append(Slot("mg", 0.0))

    def hyperparameters() -> dict[str, Any]:
        decay = tf.cast(o._decay_tensor, tf.float32)
        return {
            "learning_rate": o._learning_rate_tensor,
            "rho": decay,
            "momentum": o._momentum_tensor,
            "epsilon": o._epsilon_tensor,
            "one_minus_rho": 1.0 - decay,
        }

    return _rule(o, "centered_rms_prop" if o._centered else "rms_prop", slots, hyperparameters)


_SPARSE = ("_resource_apply_sparse_duplicate_indices", "_resource_apply_sparse")
_SPARSE_ADAM = (*_SPARSE, "_apply_sparse_shared", "_resource_scatter_add")
# (class, its methods for sparse gradients, its rule). A subclass comes before its base.
_KNOWN: tuple[tuple[type, Sequence[str], Callable[[Any], Rule]], ...] = (
    (_train.GradientDescentOptimizer, _SPARSE, _gradient_descent),
    (_train.MomentumOptimizer, _SPARSE, _momentum),
    (_train.AdagradOptimizer, _SPARSE, _adagrad),
    (LazyAdamOptimizer, _SPARSE, _adam),
    (_train.AdamOptimizer, _SPARSE_ADAM, _adam),
    (_train.FtrlOptimizer, _SPARSE, _ftrl),
    (_train.RMSPropOptimizer, _SPARSE, _rms_prop),
)


def rule_of(optimizer: Any) -> Rule | None:
    """Returns the rule by which an optimizer of `tf.compat.v1.train` applies sparse gradients; None if none is known.

    A subclass has the rule of its base if it does not override the base's methods for sparse gradients.
    """
    for cls, methods, describe in _KNOWN:
        if isinstance(optimizer, cls) and all(has_method_of(optimizer, cls, name) for name in methods):
            return describe(optimizer)
    return None
