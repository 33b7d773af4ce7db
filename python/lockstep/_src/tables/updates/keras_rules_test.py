"""Tests that the rules of Keras' optimizers say which slots there are, and which rows change, as Keras itself shows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.tables.updates import keras_rules

IS_KERAS_3 = keras.__version__.startswith("3.")
optimizers = tf.keras.optimizers
ROWS, DIM = 3, 2
# For each optimizer: the rule, and the slots by name.
OPTIMIZERS = {
    "Adagrad": (lambda: optimizers.Adagrad(0.3, initial_accumulator_value=0.2), keras_rules.adagrad, ["accumulator"]),
    "Adam": (lambda: optimizers.Adam(0.1), keras_rules.adam, ["momentum", "velocity"]),
    "Ftrl": (
        lambda: optimizers.Ftrl(0.3, initial_accumulator_value=0.3, l1_regularization_strength=0.01),
        keras_rules.ftrl,
        ["accumulator", "linear"],
    ),
    "RMSprop": (lambda: optimizers.RMSprop(0.1), keras_rules.rmsprop, ["velocity"]),
    "RMSprop, momentum": (
        lambda: optimizers.RMSprop(0.1, momentum=0.5),
        keras_rules.rmsprop,
        ["velocity", "momentum"],
    ),
    "RMSprop, centered": (
        lambda: optimizers.RMSprop(0.1, momentum=0.5, centered=True),
        keras_rules.rmsprop,
        ["velocity", "momentum", "average_gradient"],
    ),
    "SGD, momentum": (lambda: optimizers.SGD(0.1, momentum=0.9), keras_rules.sgd_with_slot, ["momentum"]),
    "SGD, nesterov": (lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True), keras_rules.sgd, ["momentum"]),
}
if IS_KERAS_3:
    OPTIMIZERS["SGD"] = (lambda: optimizers.SGD(0.1), keras_rules.sgd, [])


def built(name):
    """Returns an optimizer with the slots of a variable, the variable, and the rule."""
    make, describe, _ = OPTIMIZERS[name]
    optimizer = make()
    variable = keras.Variable(np.ones([ROWS, DIM], np.float32)) if IS_KERAS_3 else tf.Variable(tf.ones([ROWS, DIM]))
    optimizer.build([variable])
    return optimizer, variable, describe(optimizer, optimizer.learning_rate)


def held(variable, rule):
    """Returns the values of a variable and its slots."""
    return [np.array(v) for v in (variable, *(rule.slot_of(variable, slot.name) for slot in rule.slots))]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_are_keras_and_begin_with_its_values(name):
    optimizer, variable, rule = built(name)
    assert [slot.name for slot in rule.slots] == OPTIMIZERS[name][2]
    assert rule.optimizer is optimizer
    own = {id(getattr(v, "_value", v)) for v in optimizer.variables}
    for slot in rule.slots:
        found = rule.slot_of(variable, slot.name)
        assert id(found) in own and found.shape == (ROWS, DIM)
        np.testing.assert_allclose(found.numpy(), np.full([ROWS, DIM], slot.initial), rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rule_updates_the_rows_without_a_gradient_that_keras_changes(name):
    optimizer, variable, rule = built(name)
    changed = False
    # Row 1 has a gradient in the first step, and row 2 in none.
    for touched in (2, 1):
        gradient = np.zeros([ROWS, DIM], np.float32)
        gradient[:touched] = 1.0
        before = held(variable, rule)
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        after = held(variable, rule)
        changed |= any(np.any(now[touched:] != was[touched:]) for now, was in zip(after, before, strict=True))
    assert rule.all_rows == changed


def test_amsgrad_has_no_rule():
    optimizer = optimizers.Adam(0.1, amsgrad=True)
    assert keras_rules.adam(optimizer, 0.1) is None
    assert keras_rules.lazy_adam(optimizer, 0.1) is None


def test_lazy_adam_has_the_rule_of_adam_for_rows_with_a_gradient():
    optimizer = optimizers.Adam(0.1)
    adam, lazy = keras_rules.adam(optimizer, 0.1), keras_rules.lazy_adam(optimizer, 0.1)
    assert (adam.name, adam.slots) == (lazy.name, lazy.slots)
    assert adam.all_rows and not lazy.all_rows
