"""The rules that optimizers of Keras have in common since Keras 2.11, by the attributes that they share.

Keras computes with dense tensors where a rule has anything to do for rows without a gradient: with momentum, in Adam,
FTRL and RMSprop all rows of slots decay, and all weights move. So these are rules of all rows: one pass over the table
in place of one for each operation.

Imports no Keras, of which there are several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.tables.updates.rules import Rule, Slot

# What gives an optimizer's rule with a learning rate; None where it has none.
Description = Callable[[Any, Any], Rule | None]


def _rule(
    optimizer: Any,
    name: str,
    slots: Sequence[tuple[str, str, float]],
    hyperparameters: Callable[[], Sequence[Any]],
    all_rows: bool,
) -> Rule:
    """A rule whose slots are given by name, the attribute that lists them, and initial value."""
    attributes = {name: attribute for name, attribute, _ in slots}

    def slot_of(variable: Any, name: str) -> Any:
        if hasattr(optimizer, "_get_variable_index"):  # of Keras 3
            index = optimizer._get_variable_index(variable)
        else:
            index = optimizer._index_dict[optimizer._var_key(variable)]
        slot = getattr(optimizer, attributes[name])[index]
        return getattr(slot, "_value", slot)

    kept = tuple(Slot(name, initial) for name, _, initial in slots)
    return Rule(optimizer, name, kept, hyperparameters, slot_of, all_rows)


def sgd(o: Any, rate: Any) -> Rule:
    """Of `SGD` in Keras 3, which keeps no momentum where it is 0."""
    return _rule(o, "sgd", [], lambda: [rate], all_rows=False) if o.momentum == 0 else sgd_with_slot(o, rate)


def sgd_with_slot(o: Any, rate: Any) -> Rule:
    """Of `SGD` with momentum, and in Keras 2 without as well: the slot has the last step then."""
    name = "keras_nesterov" if o.nesterov else "keras_momentum"
    return _rule(o, name, [("momentum", "momentums", 0.0)], lambda: [rate, o.momentum], all_rows=True)


def adagrad(o: Any, rate: Any) -> Rule:
    """Of `Adagrad`."""
    slots = [("accumulator", "_accumulators", o.initial_accumulator_value)]
    return _rule(o, "keras_adagrad", slots, lambda: [rate, o.epsilon], all_rows=False)


def lazy_adam(o: Any, rate: Any) -> Rule | None:
    """Of `LazyAdam`."""
    return adam(o, rate, all_rows=False)


def adam(o: Any, rate: Any, all_rows: bool = True) -> Rule | None:
    """Of `Adam`."""
    if o.amsgrad:
        return None

    def hyperparameters() -> list[Any]:
        step = tf.cast(o.iterations + 1, tf.float32)
        powers = [tf.pow(tf.cast(beta, tf.float32), step) for beta in (o.beta_1, o.beta_2)]
        return [rate, o.beta_1, o.beta_2, o.epsilon, *powers, 1 - o.beta_1, 1 - o.beta_2]

    slots = [("momentum", "_momentums", 0.0), ("velocity", "_velocities", 0.0)]
    return _rule(o, "keras_adam", slots, hyperparameters, all_rows)


def ftrl(o: Any, rate: Any) -> Rule:
    """Of `Ftrl`."""

    def hyperparameters() -> list[Any]:
        l2 = o.l2_regularization_strength + o.beta / (2.0 * tf.cast(rate, tf.float32))
        shrinkage = o.l2_shrinkage_regularization_strength
        return [rate, o.learning_rate_power, o.l1_regularization_strength, l2, shrinkage]

    slots = [("accumulator", "_accumulators", o.initial_accumulator_value), ("linear", "_linears", 0.0)]
    return _rule(o, "ftrl", slots, hyperparameters, all_rows=True)


def rmsprop(o: Any, rate: Any) -> Rule:
    """Of `RMSprop`, which keeps no momentum where it is 0."""
    slots = [("velocity", "_velocities", 0.0)]
    if o.momentum > 0:
        slots.append(("momentum", "_momentums", 0.0))
    if o.centered:
        slots.append(("average_gradient", "_average_gradients", 0.0))
    name = ("" if o.momentum > 0 else "plain_") + ("centered_" if o.centered else "") + "rms_prop"
    return _rule(o, name, slots, lambda: [rate, o.rho, o.momentum, o.epsilon, 1 - o.rho], all_rows=True)
