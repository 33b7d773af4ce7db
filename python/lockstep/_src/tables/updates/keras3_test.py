"""Tests that fused updates give the results of Keras 3 for the sum of each row's gradients."""

from __future__ import annotations

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine import library
from lockstep._src.hooks import symbols
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables.updates.tensorflow1_rules_test import FTRL_ARGUMENTS

if not keras.__version__.startswith("3."):
    pytest.skip("Keras 3 is not installed", allow_module_level=True)

from lockstep._src.tables.updates import keras3, rule_of
from lockstep._src.tables.updates.lazy_adam_keras import LazyAdam

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.3),
    "SGD, decaying rate": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.3, 2, 0.5)),
    "momentum": lambda: keras.optimizers.SGD(0.2, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.2, momentum=0.9, nesterov=True),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.3, initial_accumulator_value=0.2, epsilon=1e-3),
    "Adam": lambda: keras.optimizers.Adam(0.02),
    "Adam, all arguments": lambda: keras.optimizers.Adam(0.05, beta_1=0.8, beta_2=0.99, epsilon=1e-4),
    "AdamW": lambda: keras.optimizers.AdamW(0.02, weight_decay=0.01),
    "lazy Adam": lambda: LazyAdam(0.05, beta_1=0.8, beta_2=0.99, epsilon=1e-4),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.3),
    "Ftrl, all arguments": lambda: keras.optimizers.Ftrl(0.3, **FTRL_ARGUMENTS),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.05, rho=0.99),
    "RMSprop, momentum": lambda: keras.optimizers.RMSprop(0.05, momentum=0.5, epsilon=1e-3),
    "centered RMSprop": lambda: keras.optimizers.RMSprop(0.05, centered=True),
    "centered RMSprop, momentum": lambda: keras.optimizers.RMSprop(0.05, momentum=0.5, centered=True),
    "clipping": lambda: keras.optimizers.Adagrad(0.3, clipnorm=0.5),
    "clipping by value": lambda: keras.optimizers.Adam(0.02, clipvalue=0.3),
}
ROWS, DIM = 40, 7
COUNTS = (30, 1, 0, 25)


def counting():
    """Counts how often the operation is created."""
    return mock.patch.object(library.ops, "lockstep_sparse_update", wraps=library.ops.lockstep_sparse_update)


def slices(step, summed):
    random = np.random.default_rng(step)
    values = random.normal(size=[COUNTS[step], DIM]).astype(np.float32)
    indices = random.integers(0, ROWS, COUNTS[step])
    if summed:
        indices, place = np.unique(indices, return_inverse=True)
        sums = np.zeros([len(indices), DIM], np.float32)
        np.add.at(sums, place, values)
        values = sums
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([ROWS, DIM]))


def trained(make_optimizer, summed, in_function):
    begin = np.random.default_rng(7).normal(size=[ROWS, DIM]).astype(np.float32)
    table = keras.Variable(begin, name="table")
    optimizer = make_optimizer()
    optimizer.build([table])

    def apply(values, indices):
        optimizer.apply([tf.IndexedSlices(values, indices, tf.constant([ROWS, DIM]))], [table])

    if in_function:
        apply = tf.function(apply, reduce_retracing=True)
    after = []
    for step in range(len(COUNTS)):
        gradient = slices(step, summed)
        apply(gradient.values, gradient.indices)
        after.append({v.path: np.array(v) for v in [table, *optimizer.variables]})
    return after


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("in_function", [False, True])
def test_numbers_are_keras(name, in_function):
    expected = trained(OPTIMIZERS[name], summed=True, in_function=in_function)
    with scope(), counting() as made:
        after = trained(OPTIMIZERS[name], summed=False, in_function=in_function)
    assert made.called
    for got, wanted in zip(after, expected, strict=True):
        for (path, value), want in zip(got.items(), wanted.values(), strict=True):
            np.testing.assert_allclose(value, want, rtol=1e-6, atol=1e-6, err_msg=path)


class Scaling(keras.optimizers.Adagrad):
    """A subclass that changes the gradient."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(keras.ops.multiply(2.0, gradient), variable, learning_rate)


class OnlyAddingUp(keras.optimizers.Adagrad):
    """A subclass with an update of its own."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(0.1, amsgrad=True),
        lambda: keras.optimizers.Nadam(0.1),
        lambda: keras.optimizers.Adadelta(0.1),
        lambda: keras.optimizers.Lion(0.1),
        lambda: OnlyAddingUp(0.1),
    ],
)
def test_optimizers_that_are_not_known_keep_their_way(make):
    expected = trained(make, summed=True, in_function=False)
    assert rule_of(make()) is None
    with scope(), counting() as made:
        after = trained(make, summed=False, in_function=False)
    assert not made.called
    np.testing.assert_allclose(after[-1]["table"], expected[-1]["table"], rtol=1e-5, atol=1e-6)


def test_a_subclass_that_calls_its_bases_step_gets_that():
    expected = trained(lambda: Scaling(0.1), summed=True, in_function=True)
    with scope():
        after = trained(lambda: Scaling(0.1), summed=False, in_function=True)
    np.testing.assert_allclose(after[-1]["table"], expected[-1]["table"], rtol=1e-6, atol=1e-6)


def fitted(make_optimizer, **options):
    keras.utils.set_random_seed(1)
    with embedding_scope(**options):
        inputs = keras.Input([3], dtype="int64")
        x = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(x))
        model.compile(make_optimizer(), "mse")
        ids = np.random.default_rng(0).integers(0, 50, [64, 3])
        history = model.fit(ids, ids.sum(1) / 50.0, batch_size=16, epochs=2, verbose=0, shuffle=False)
        return history.history["loss"], [np.array(w) for w in model.get_weights()]


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "lazy Adam"])
def test_fit_is_the_same_with_and_without(name):
    with counting() as made:
        losses, weights = fitted(OPTIMIZERS[name], fused_updates=False)
    assert not made.called
    with counting() as made:
        fused_losses, fused_weights = fitted(OPTIMIZERS[name])
    assert made.called
    np.testing.assert_allclose(fused_losses, losses, rtol=1e-6)
    for got, wanted in zip(fused_weights, weights, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_lazy_adam_leaves_other_rows_alone_and_is_serializable():
    table = keras.Variable(np.ones([4, 2], np.float32))
    optimizer = keras.optimizers.deserialize(keras.optimizers.serialize(LazyAdam(0.1, epsilon=1e-3)))
    assert isinstance(optimizer, LazyAdam) and optimizer.epsilon == 1e-3
    for row in (1, 2):
        before = np.array(table)
        gradient = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([row, row]))
        optimizer.apply([gradient], [table])
        changed = np.any(np.array(table) != before, axis=1)
        np.testing.assert_array_equal(changed, np.arange(4) == row)
    # Duplicates count as their sum, in a scope or not: the first step of Adam is about as large as the rate.
    np.testing.assert_allclose(np.array(table)[1], 1 - 0.1 * 2 / (2 + 1e-3 / np.sqrt(0.001)), rtol=1e-4)


def test_each_rule_has_a_row_in_the_table_of_replaced_symbols():
    rules = {cls for cls in keras3._KNOWN if cls is not LazyAdam}
    rows = {hook.places()[0][0] for hook in symbols.KERAS_UPDATE_STEPS.values()}
    assert rules == rows, "KERAS_UPDATE_STEPS in hooks/symbols.py and _KNOWN in keras3.py differ"
