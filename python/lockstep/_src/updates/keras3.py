"""The rules of Keras 3's optimizers.

Keras 3 computes with dense tensors where a rule has anything to do for rows without a gradient: with momentum, in Adam,
FTRL and RMSprop all rows of slots decay, and all weights move. So these are rules of all rows: one pass over the table
in place of one for each operation.

Imports Keras: a scope imports this module where the program has Keras 3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras.src import ops
from keras.src.optimizers import adagrad, adam, base_optimizer, ftrl, rmsprop, sgd

from lockstep._src.context import context
from lockstep._src.interception import Interception
from lockstep._src.updates.apply import apply_rule, is_fit
from lockstep._src.updates.lazy_adam_keras import LazyAdam
from lockstep._src.updates.rules import Rule, Slot, has_method_of


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
        slot = getattr(optimizer, attributes[name])[optimizer._get_variable_index(variable)]
        return getattr(slot, "_value", slot)

    return Rule(name, tuple(Slot(name, initial) for name, _, initial in slots), hyperparameters, slot_of, all_rows)


def _sgd(o: Any, rate: Any) -> Rule:
    if o.momentum == 0:
        return _rule(o, "sgd", [], lambda: [rate], all_rows=False)
    name = "keras_nesterov" if o.nesterov else "keras_momentum"
    return _rule(o, name, [("momentum", "momentums", 0.0)], lambda: [rate, o.momentum], all_rows=True)


def _adagrad(o: Any, rate: Any) -> Rule:
    slots = [("accumulator", "_accumulators", o.initial_accumulator_value)]
    return _rule(o, "keras_adagrad", slots, lambda: [rate, o.epsilon], all_rows=False)


def _adam(o: Any, rate: Any) -> Rule | None:
    if o.amsgrad:
        return None

    def hyperparameters() -> list[Any]:
        step = ops.cast(o.iterations + 1, "float32")
        powers = [ops.power(ops.cast(beta, "float32"), step) for beta in (o.beta_1, o.beta_2)]
        return [rate, o.beta_1, o.beta_2, o.epsilon, *powers, 1 - o.beta_1, 1 - o.beta_2]

    slots = [("momentum", "_momentums", 0.0), ("velocity", "_velocities", 0.0)]
    return _rule(o, "keras_adam", slots, hyperparameters, all_rows=not isinstance(o, LazyAdam))


def _ftrl(o: Any, rate: Any) -> Rule:
    def hyperparameters() -> list[Any]:
        l2 = o.l2_regularization_strength + o.beta / (2.0 * tf.cast(rate, tf.float32))
        shrinkage = o.l2_shrinkage_regularization_strength
        return [rate, o.learning_rate_power, o.l1_regularization_strength, l2, shrinkage]

    slots = [("accumulator", "_accumulators", o.initial_accumulator_value), ("linear", "_linears", 0.0)]
    return _rule(o, "ftrl", slots, hyperparameters, all_rows=True)


def _rmsprop(o: Any, rate: Any) -> Rule:
    slots = [("velocity", "_velocities", 0.0)]
    if o.momentum > 0:
        slots.append(("momentum", "_momentums", 0.0))
    if o.centered:
        slots.append(("average_gradient", "_average_gradients", 0.0))
    name = ("" if o.momentum > 0 else "plain_") + ("centered_" if o.centered else "") + "rms_prop"
    return _rule(o, name, slots, lambda: [rate, o.rho, o.momentum, o.epsilon, 1 - o.rho], all_rows=True)


# The class that defines `update_step`, and the rule that it computes with a learning rate.
_KNOWN: dict[type, Callable[[Any, Any], Rule | None]] = {
    sgd.SGD: _sgd,
    adagrad.Adagrad: _adagrad,
    adam.Adam: _adam,
    ftrl.Ftrl: _ftrl,
    rmsprop.RMSprop: _rmsprop,
    LazyAdam: _adam,
}


def rule_of(optimizer: Any) -> Rule | None:
    """The rule by which an optimizer of Keras 3 applies sparse gradients; None where it is not known.

    A subclass has its base's rule where it has its base's `update_step`.
    """
    describe = _description_of(optimizer)
    return None if describe is None else describe(optimizer, optimizer._get_current_learning_rate())


def _description_of(optimizer: Any) -> Callable[[Any, Any], Rule | None] | None:
    known = (cls for cls in _KNOWN if isinstance(optimizer, cls) and has_method_of(optimizer, cls, "update_step"))
    return _KNOWN.get(next(known, None))


def summed(gradient: Any) -> Any:
    """The gradient, of slices with one for each row.

    Keras squares slice by slice, where a row has several: what an optimizer does would depend on how a batch's rows are
    spread over workers, and differ from what it does with the same gradient in dense form.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, position = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, position, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def sums_slices(optimizer: Any, gradient: Any, variable: Any) -> bool:
    """Whether all that `optimizer.apply` does with a gradient is a fused update, which sums slices of one row."""
    if not context.options.fused_updates or not isinstance(gradient, tf.IndexedSlices) or not is_fit(variable):
        return False
    clips = optimizer.clipnorm or optimizer.clipvalue or optimizer.global_clipnorm
    if clips or optimizer.gradient_accumulation_steps:
        return False
    describe = _description_of(optimizer)
    own_apply = has_method_of(optimizer, base_optimizer.BaseOptimizer, "apply")
    return own_apply and describe is not None and describe(optimizer, None) is not None


def intercept_updates(interception: Interception) -> None:
    """Makes optimizers of Keras 3 apply sparse gradients by fused updates while the interception lasts.

    What is replaced is the `update_step` of the known classes: a subclass that overrides it and calls it with a
    gradient of its own making gets that applied.
    """
    for cls, describe in _KNOWN.items():
        interception.replace(cls, "update_step", functools.partial(_wrap_update_step, describe))


def _wrap_update_step(describe: Callable[[Any, Any], Rule | None], update_step: Callable[..., None]) -> Any:
    @functools.wraps(update_step)
    def wrapped(self: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if context.options.fused_updates and isinstance(gradient, tf.IndexedSlices):
            rule = describe(self, learning_rate)
            gradient = tf.cast(gradient, variable.dtype)
            if rule is not None and apply_rule(rule, variable, gradient.values, gradient.indices) is not None:
                return
            gradient = summed(gradient)
        update_step(self, gradient, variable, learning_rate)

    return wrapped
