"""Tests that fused updates give the results of Keras 2: its optimizers since 2.11, and the legacy ones."""

from __future__ import annotations

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine import library
from lockstep._src.hooks import symbols
from lockstep._src.scope import scope
from lockstep._src.tables.updates import keras2
from lockstep._src.tables.updates.tensorflow1_rules_test import FTRL_ARGUMENTS, assert_same

if not keras.__version__.startswith("2."):
    pytest.skip("Keras 2 is not installed", allow_module_level=True)

new, legacy = tf.keras.optimizers, tf.keras.optimizers.legacy
OPTIMIZERS = {
    "SGD": lambda: new.SGD(0.3),
    "SGD, momentum": lambda: new.SGD(0.2, momentum=0.9),
    "SGD, nesterov": lambda: new.SGD(0.2, momentum=0.9, nesterov=True),
    "Adagrad": lambda: new.Adagrad(0.3, initial_accumulator_value=0.2, epsilon=1e-3),
    "Adam": lambda: new.Adam(new.schedules.ExponentialDecay(0.02, 2, 0.5)),
    "AdamW": lambda: new.AdamW(0.02, weight_decay=0.01),
    "RMSprop": lambda: new.RMSprop(0.05, rho=0.99),
    "centered RMSprop, momentum": lambda: new.RMSprop(0.05, momentum=0.5, centered=True),
    "legacy SGD": lambda: legacy.SGD(0.3),
    "legacy SGD, nesterov": lambda: legacy.SGD(0.2, momentum=0.9, nesterov=True),
    "legacy Adagrad": lambda: legacy.Adagrad(0.3, initial_accumulator_value=0.2, epsilon=1e-3),
    "legacy Adam": lambda: legacy.Adam(new.schedules.ExponentialDecay(0.02, 2, 0.5), epsilon=1e-4),
    "legacy Ftrl": lambda: legacy.Ftrl(0.3, **FTRL_ARGUMENTS),
    "legacy RMSprop, momentum": lambda: legacy.RMSprop(0.05, momentum=0.5),
    "legacy centered RMSprop, momentum": lambda: legacy.RMSprop(0.05, momentum=0.5, centered=True),
}
UNKNOWN = {
    "Adam, amsgrad": lambda: new.Adam(0.02, amsgrad=True),
    "legacy Adam, amsgrad": lambda: legacy.Adam(0.02, amsgrad=True),
    "legacy RMSprop": lambda: legacy.RMSprop(0.05),
    "legacy Adadelta": lambda: legacy.Adadelta(0.05),
    "legacy Nadam": lambda: legacy.Nadam(0.05),
}
ROWS, DIM = 40, 7
COUNTS = (30, 1, 0, 25)


def trained(make_optimizer, in_function):
    """Returns the table and the optimizer's variables after some steps."""
    table = tf.Variable(np.random.default_rng(7).normal(size=[ROWS, DIM]).astype(np.float32), name="table")
    optimizer = make_optimizer()

    def apply(values, indices):
        optimizer.apply_gradients([(tf.IndexedSlices(values, indices, tf.constant([ROWS, DIM])), table)])

    if in_function:
        apply = tf.function(apply, reduce_retracing=True)
    for step, count in enumerate(COUNTS):
        random = np.random.default_rng(step)
        values = random.normal(size=[count, DIM]).astype(np.float32)
        apply(tf.constant(values), tf.constant(random.integers(0, ROWS, count)))
    variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return {f"{i} {v.name}": v.numpy() for i, v in enumerate([table, *variables])}


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("name", [*OPTIMIZERS, *UNKNOWN])
def test_numbers_are_keras(name, in_function):
    make = (OPTIMIZERS | UNKNOWN)[name]
    expected = trained(make, in_function)
    fused = mock.patch.object(library.ops, "lockstep_sparse_update", wraps=library.ops.lockstep_sparse_update)
    with scope(), fused as made:
        got = trained(make, in_function)
    assert made.called == (name in OPTIMIZERS)
    assert_same(got, expected)


def test_a_subclass_with_a_way_of_its_own_keeps_it():
    class Scaling(legacy.Adagrad):
        def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
            return super()._resource_apply_sparse(2.0 * grad, var, indices, apply_state)

    expected = trained(lambda: Scaling(0.1), in_function=False)
    with scope():
        assert_same(trained(lambda: Scaling(0.1), in_function=False), expected)


def test_each_rule_has_a_row_in_the_table_of_replaced_symbols():
    rules, rows = set(keras2._DESCRIPTIONS), set(symbols.KERAS_2_UPDATE_STEPS)
    assert rules == rows, "KERAS_2_UPDATE_STEPS in hooks/symbols.py and _DESCRIPTIONS in keras2.py differ"
