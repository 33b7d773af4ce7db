"""The rules of optimizers of Keras since version 2.11, in terms of the attributes that its versions share.

If a rule changes rows without a gradient, Keras computes with dense tensors: with momentum, and in Adam, FTRL and
RMSprop, all rows of slots decay and all weights move. So these rules update all rows: one pass over the table in place
of one pass for each operation.

This module does not import Keras, because a program may have several versions of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.tables.updates.rules import Rule, Slot

# Computes an optimizer's rule from the optimizer and a learning rate; None without a rule.
Description = Callable[[Any, Any], Rule | None]


def _rule(
    optimizer: Any,
    name: str,
    slots: Sequence[tuple[str, str, float]],
    hyperparameters: Callable[[], Mapping[str, Any]],
    all_rows: bool,
) -> Rule:
    """Returns a rule; slots are given by name, the optimizer's attribute that lists them, and initial value."""
    attributes = {name: attribute for name, attribute, _ in slots}

    def slot_of(variable: Any, name: str) -> Any:
        if hasattr(optimizer, "_get_variable_index"):  # Keras 3
            index = optimizer._get_variable_index(variable)
        else:
            index = optimizer._index_dict[optimizer._var_key(variable)]
        slot = getattr(optimizer, attributes[name])[index]
        return getattr(slot, "_value", slot)

    kept = tuple(Slot(name, initial) for name, _, initial in slots)
    return Rule(optimizer, name, kept, hyperparameters, slot_of, all_rows)


def sgd(o: Any, rate: Any) -> Rule:
    """Returns the rule of `SGD` in Keras 3, which has no momentum slot if the momentum is 0."""
    if o.momentum != 0:
        return sgd_with_slot(o, rate)
    return _rule(o, "sgd", [], lambda: {"learning_rate": rate}, all_rows=False)


def sgd_with_slot(o: Any, rate: Any) -> Rule:
    """Returns the rule of `SGD` with a momentum slot; in Keras 2 also without momentum, where it has the last step."""
    name = "keras_nesterov" if o.nesterov else "keras_momentum"

    def hyperparameters() -> dict[str, Any]:
        return {"learning_rate": rate, "momentum": o.momentum}

    return _rule(o, name, [("momentum", "momentums", 0.0)], hyperparameters, all_rows=True)


def adagrad(o: Any, rate: Any) -> Rule:
    """Returns the rule of `Adagrad`."""
    slots = [("accumulator", "_accumulators", o.initial_accumulator_value)]
    return _rule(o, "keras_adagrad", slots, lambda: {"learning_rate": rate, "epsilon": o.epsilon}, all_rows=False)


def lazy_adam(o: Any, rate: Any) -> Rule | None:
    """Returns the rule of `LazyAdam`."""
    return adam(o, rate, all_rows=False)


def adam(o: Any, rate: Any, all_rows: bool = True) -> Rule | None:
    """Returns the rule of `Adam`; None with `amsgrad`."""
    if o.amsgrad:
        return None

    def hyperparameters() -> dict[str, Any]:
        step = tf.cast(o.iterations + 1, tf.float32)
        return {
            "learning_rate": rate,
            "beta1": o.beta_1,
            "beta2": o.beta_2,
            "epsilon": o.epsilon,
            "beta1_power": tf.pow(tf.cast(o.beta_1, tf.float32), step),
            "beta2_power": tf.pow(tf.cast(o.beta_2, tf.float32), step),
            "one_minus_beta1": 1 - o.beta_1,
            "one_minus_beta2": 1 - o.beta_2,
        }

    slots = [("momentum", "_momentums", 0.0), ("velocity", "_velocities", 0.0)]
    return _rule(o, "keras_adam", slots, hyperparameters, all_rows)


def ftrl(o: Any, rate: Any) -> Rule:
    """Returns the rule of `Ftrl`."""

    def hyperparameters() -> dict[str, Any]:
        return {
            "learning_rate": rate,
            "learning_rate_power": o.learning_rate_power,
            "l1": o.l1_regularization_strength,
            "l2": o.l2_regularization_strength + o.beta / (2.0 * tf.cast(rate, tf.float32)),
            "l2_shrinkage": o.l2_shrinkage_regularization_strength,
        }

    slots = [("accumulator", "_accumulators", o.initial_accumulator_value), ("linear", "_linears", 0.0)]
    return _rule(o, "ftrl", slots, hyperparameters, all_rows=True)


def rmsprop(o: Any, rate: Any) -> Rule:
    """Returns the rule of `RMSprop`, which has no momentum slot if the momentum is 0."""
    slots = [("velocity", "_velocities", 0.0)]
    if o.momentum > 0:
        slots.append(("momentum", "_momentums", 0.0))
    if o.centered:
        slots.append(("average_gradient", "_average_gradients", 0.0))
    name = ("" if o.momentum > 0 else "plain_") + ("centered_" if o.centered else "") + "rms_prop"

    def hyperparameters() -> dict[str, Any]:
        momentum = {"momentum": o.momentum} if o.momentum > 0 else {}
        return {"learning_rate": rate, "rho": o.rho, **momentum, "epsilon": o.epsilon, "one_minus_rho": 1 - o.rho}

    return _rule(o, name, slots, hyperparameters, all_rows=True)
