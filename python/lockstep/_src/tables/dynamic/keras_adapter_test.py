"""Tests that optimizers of Keras 3 train a dynamic table as they train a dense matrix of its touched rows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras")
if not keras.__version__.startswith("3"):
    pytest.skip("the adapter is for Keras 3", allow_module_level=True)

from lockstep._src.tables.dynamic import EmbeddingVariableOption  # noqa: E402
from lockstep._src.tables.dynamic.creation import make_table  # noqa: E402

optimizers = keras.optimizers
DIM = 3
KEYS = np.array([10, 20, 30, 40])
MATRIX = np.random.RandomState(0).randn(4, DIM).astype(np.float32)
# Every step touches all rows, some of them twice: then all rows of a dense matrix have a gradient, too.
PLACES = [[0, 1, 2, 3, 1], [3, 2, 1, 0, 3, 3], [0, 1, 2, 3]]


def weight_of(**options):
    """Returns a table as a weight of Keras, as layers hold it."""
    table = make_table("table", DIM, initializer=0.0, option=EmbeddingVariableOption(**options))
    table.insert(KEYS, MATRIX)
    weight = keras.Variable(np.zeros([1, DIM], np.float32), name="table")
    weight._value = table
    return weight


def gradients(step):
    """Returns a step's gradient as slices for keys, and as a dense matrix."""
    values = np.random.RandomState(step).randn(len(PLACES[step]), DIM).astype(np.float32)
    dense = np.zeros([4, DIM], np.float32)
    np.add.at(dense, PLACES[step], values)
    return values, dense


def slices_of(table, keys, values):
    """Returns the gradient of a table in which the rows of keys have these values."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table.sparse_read(tf.constant(keys)) * values)
    return tape.gradient(loss, table)


def trained(optimizer, weight):
    for step, places in enumerate(PLACES):
        values, _ = gradients(step)
        optimizer.apply([slices_of(weight._value, KEYS[places], values)], [weight])
    return weight._value.export().values.numpy()


def trained_matrix(optimizer):
    variable = keras.Variable(MATRIX)
    for step in range(len(PLACES)):
        optimizer.apply([tf.constant(gradients(step)[1])], [variable])
    return variable.numpy()


OPTIMIZERS = {
    "Adam": lambda: optimizers.Adam(0.1),
    "clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.5),
    "clipvalue": lambda: optimizers.Adagrad(0.1, clipvalue=0.3),
    "global_clipnorm": lambda: optimizers.SGD(0.1, global_clipnorm=0.5),
    "Adamax": lambda: optimizers.Adamax(0.1),
    "Adadelta": lambda: optimizers.Adadelta(0.5),
    "Nadam": lambda: optimizers.Nadam(0.1),
    "Lion": lambda: optimizers.Lion(0.01),
    "amsgrad": lambda: optimizers.Adam(0.1, amsgrad=True),
    "a loss scale": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=8.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_are_those_of_a_dense_matrix(name):
    rows = trained(OPTIMIZERS[name](), weight_of())
    np.testing.assert_allclose(rows, trained_matrix(OPTIMIZERS[name]()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["Adamax", "Lion"])
def test_an_optimizer_without_a_rule_leaves_other_rows_alone(name):
    weight, optimizer = weight_of(), OPTIMIZERS[name]()
    for _ in range(2):
        optimizer.apply([slices_of(weight._value, KEYS[[1, 1]], np.ones([2, DIM], np.float32))], [weight])
    changed = np.any(weight._value.export().values.numpy() != MATRIX, axis=1)
    np.testing.assert_array_equal(changed, [False, True, False, False])


@pytest.mark.parametrize(
    ("option", "value"), [("gradient_accumulation_steps", 2), ("use_ema", True), ("weight_decay", 0.1)]
)
def test_options_that_need_whole_variables_are_refused(option, value):
    weight, optimizer = weight_of(), optimizers.SGD(0.1, name="mine", **{option: value})
    with pytest.raises(NotImplementedError, match=f"mine: {option} is not implemented for dynamic tables"):
        optimizer.apply([slices_of(weight._value, KEYS[:1], np.ones([1, DIM], np.float32))], [weight])


def test_a_dense_gradient_is_refused():
    with pytest.raises(NotImplementedError, match="table 'table' is dynamic: its gradient is tf.IndexedSlices, got"):
        optimizers.SGD(0.1).apply([tf.zeros([4, DIM])], [weight_of()])


class Drawing(optimizers.SGD):
    """An optimizer whose slot begins with random values."""

    def build(self, variables):
        super().build(variables)
        for variable in variables:
            self.add_variable_from_reference(variable, "noise", initializer="random_normal")


def test_slots_that_do_not_begin_with_a_constant_are_refused():
    with pytest.raises(NotImplementedError, match="table 'table': .* slot has the initializer random_normal, wanted a"):
        Drawing(0.1).build([weight_of()])


def test_slots_are_zeros_of_one_row_in_files_of_keras():
    weight, optimizer = weight_of(), OPTIMIZERS["Adamax"]()
    trained(optimizer, weight)
    slots = [v for v in optimizer.variables if v.shape == (1, DIM)]
    assert len(slots) == 2
    for slot in slots:
        np.testing.assert_array_equal(slot.numpy(), np.zeros([1, DIM]))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_loss_scale_skips_a_step_whose_slices_are_not_finite(value):
    weight, optimizer = weight_of(), OPTIMIZERS["a loss scale"]()
    optimizer.apply([slices_of(weight._value, KEYS[:1], np.full([1, DIM], value, np.float32))], [weight])
    np.testing.assert_array_equal(weight._value.export().values, MATRIX)
    assert float(optimizer.dynamic_scale.numpy()) == 4.0


@pytest.mark.parametrize("name", ["Adam", "Adamax"], ids=["a rule", "a stand-in"])
def test_each_application_ends_one_step_of_the_table(name):
    weight, optimizer = weight_of(record_version=True), OPTIMIZERS[name]()
    trained(optimizer, weight)
    weight._value.sparse_read([99])
    assert weight._value.get_version([99]).numpy().tolist() == [len(PLACES)]


def test_other_variables_beside_a_table_are_trained_as_without_it():
    dense, alone = keras.Variable(MATRIX), keras.Variable(MATRIX)
    weight, optimizer = weight_of(), OPTIMIZERS["Adam"]()
    values = np.ones([1, DIM], np.float32)
    optimizer.apply([tf.ones([4, DIM]), slices_of(weight._value, KEYS[:1], values)], [dense, weight])
    OPTIMIZERS["Adam"]().apply([tf.ones([4, DIM])], [alone])
    np.testing.assert_array_equal(dense.numpy(), alone.numpy())
