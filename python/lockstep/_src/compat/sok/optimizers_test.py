"""Tests that wrapped optimizers of all libraries update touched rows as TensorFlow does, with SOK's names of slots.

The oracle is the optimizer itself on a variable with only the touched rows, as SOK applies it.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import optimizers, rows, slots
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.variables import make

tf1 = tf.compat.v1
DIM, STEPS = 3, 4
KEYS = (5, 2**40, 7, -1)


def keras_of(version):
    """Returns a module of optimizers, and whether Keras has it; tests of others are skipped."""
    if version == "default":
        return tf.keras.optimizers
    keras = tf.keras if hasattr(tf.keras, "__internal__") else pytest.importorskip("tf_keras")
    return keras.optimizers.legacy if version == "legacy" else keras.optimizers


OPTIMIZERS = {
    "SGD": (lambda m: m.SGD(0.1), []),
    "momentum": (lambda m: m.SGD(0.1, momentum=0.9), ["momentum"]),
    "nesterov": (lambda m: m.SGD(0.1, momentum=0.9, nesterov=True), ["momentum"]),
    "Adagrad": (lambda m: m.Adagrad(0.1), ["accumulator"]),
    "Adam": (lambda m: m.Adam(0.1), ["m", "v"]),
    "Adamax": (lambda m: m.Adamax(0.1), ["m", "v"]),
    "Adadelta": (lambda m: m.Adadelta(0.1), ["accum_grad", "accum_var"]),
    "Ftrl": (lambda m: m.Ftrl(0.1), ["accumulator", "linear"]),
}


def gradient(step):
    """Returns the values of a step's gradient for all keys; every key has one in every step."""
    return np.random.default_rng(step).normal(size=[len(KEYS), DIM]).astype(np.float32)


def train(optimizer, variable, indices):
    for step in range(STEPS):
        with tf.GradientTape() as tape:
            found = tf.nn.embedding_lookup(variable, tf.constant(indices, tf.int64))
            loss = tf.reduce_sum(found * gradient(step))
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("version", ["default", "legacy", "keras 2"])
def test_optimizers_of_keras(started, name, version):
    module = keras_of(version)
    make_optimizer, slot_names = OPTIMIZERS[name]
    plain, expected = make_optimizer(module), tf.Variable(tf.ones([len(KEYS), DIM]))
    train(plain, expected, range(len(KEYS)))
    variable = DynamicVariable(DIM, "1", var_type="hbm")
    wrapper = optimizers.wrap(make_optimizer(module))
    train(wrapper, variable, KEYS)
    order = np.argsort(KEYS)
    np.testing.assert_allclose(rows.export(variable)[1], expected.numpy()[order], rtol=1e-5, atol=1e-6)
    assert wrapper.get_slot_names() == slot_names
    of_plain = {n: slot.numpy()[order] for n, slot in slots._slot_variables(plain, expected).items()}
    for slot_name in slot_names:
        np.testing.assert_allclose(wrapper.get_slot(variable, slot_name), of_plain[slot_name], rtol=1e-5, atol=1e-6)


TENSORFLOW_1 = {
    "SGD": (lambda: tf1.train.GradientDescentOptimizer(0.1), []),
    "Momentum": (lambda: tf1.train.MomentumOptimizer(0.1, 0.9), ["momentum"]),
    "Adagrad": (lambda: tf1.train.AdagradOptimizer(0.1), ["accumulator"]),
    "Adam": (lambda: tf1.train.AdamOptimizer(0.1), ["m", "v"]),
    "Adadelta": (lambda: tf1.train.AdadeltaOptimizer(0.1), ["accum_grad", "accum_var"]),
    "Ftrl": (lambda: tf1.train.FtrlOptimizer(0.1), ["accumulator", "linear"]),
}


@pytest.mark.parametrize("name", TENSORFLOW_1)
def test_optimizers_of_tensorflow_1(started, name):
    make_optimizer, slot_names = TENSORFLOW_1[name]
    expected = tf.Variable(tf.ones([len(KEYS), DIM]))
    train(make_optimizer(), expected, range(len(KEYS)))
    variable = DynamicVariable(DIM, "1", var_type="hbm")
    wrapper = optimizers.wrap(make_optimizer())
    train(wrapper, variable, KEYS)
    np.testing.assert_allclose(rows.export(variable)[1], expected.numpy()[np.argsort(KEYS)], rtol=1e-5, atol=1e-6)
    assert wrapper.get_slot_names() == slot_names
    for slot_name in slot_names:
        assert wrapper.get_slot(variable, slot_name).shape == [len(KEYS), DIM]


@pytest.mark.parametrize("version", ["default", "legacy", "keras 2", "tensorflow 1"])
def test_rows_without_a_gradient_stay(started, version):
    adam = tf1.train.AdamOptimizer(0.1) if version == "tensorflow 1" else keras_of(version).Adam(0.1)
    variable, wrapper = DynamicVariable(DIM, "1", var_type="hbm"), optimizers.wrap(adam)
    for keys in ([1, 2], [2], [2]):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, tf.constant(keys, tf.int64)))
        wrapper.apply_gradients([(tape.gradient(loss, variable), variable)])
    np.testing.assert_allclose(rows.export(variable)[1], [[0.9] * DIM, [0.7] * DIM], rtol=1e-5)


@pytest.mark.parametrize("version", ["default", "legacy", "keras 2", "tensorflow 1"])
def test_a_wrapper_counts_its_own_steps(started, version):
    """The same optimizer serves a variable and a table in each step; both have the first step's bias correction."""
    adam = tf1.train.AdamOptimizer(0.1) if version == "tensorflow 1" else keras_of(version).Adam(0.1)
    table, dense = DynamicVariable(DIM, "1", var_type="hbm"), tf.Variable(tf.ones([DIM]))
    wrapper = optimizers.wrap(adam)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [4])) + tf.reduce_sum(dense)
        of_table, of_dense = tape.gradient(loss, [table, dense])
        adam.apply_gradients([(of_dense, dense)])
        wrapper.apply_gradients([(of_table, table)])
    np.testing.assert_allclose(dense, [0.7] * DIM, rtol=1e-5)
    np.testing.assert_allclose(rows.export(table)[1], [[0.7] * DIM], rtol=1e-5)


@pytest.mark.parametrize("version", ["default", "legacy", "keras 2"])
def test_the_learning_rate_is_shared_and_changes(started, version):
    sgd = keras_of(version).SGD(1.0)
    wrapper, table = optimizers.wrap(sgd), DynamicVariable(DIM, "1", var_type="hbm")

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, tf.constant([4], tf.int64)))
        wrapper.apply_gradients([(tape.gradient(loss, table), table)])

    step()
    wrapper.lr.assign(0.25)
    step()
    np.testing.assert_allclose(rows.export(table)[1], [[-0.25] * DIM])


@pytest.mark.parametrize("version", ["default", "legacy", "keras 2"])
def test_steps_are_calls_whichever_table_has_a_gradient(started, version):
    """A schedule that multiplies the rate by 10 in each step counts steps without a gradient of the table, too."""
    module = keras_of(version)
    schedules = module.schedules if version != "legacy" else keras_of("keras 2").schedules
    sgd = module.SGD(schedules.ExponentialDecay(0.01, 1, 10.0))
    wrapper = optimizers.wrap(sgd)
    often, seldom = (DynamicVariable(1, "0", var_type="hbm") for _ in range(2))
    static = make(np.zeros([2, 1], np.float32))
    for table in (often, seldom):
        table.sparse_read(tf.constant([1], tf.int64))
    one = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([1], tf.int64))
    for step in range(4):
        pairs = [(one, often), (one if step in (0, 3) else None, seldom), (one if step == 1 else None, static)]
        wrapper.apply_gradients(pairs)
        wrapper.apply_gradients([(None, often)])
    np.testing.assert_allclose(rows.export(often)[1], [[-11.11]], rtol=1e-5)
    np.testing.assert_allclose(rows.export(seldom)[1], [[-10.01]], rtol=1e-5)


@pytest.mark.parametrize("version", ["default", "keras 2"])
def test_another_learning_rate_is_seen(started, version):
    module = keras_of(version)
    sgd = module.SGD(0.5)
    wrapper, table = optimizers.wrap(sgd), DynamicVariable(1, "0", var_type="hbm")
    table.sparse_read(tf.constant([1], tf.int64))
    one = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([1], tf.int64))
    wrapper.apply_gradients([(one, table)])
    sgd._learning_rate = module.schedules.PiecewiseConstantDecay([0], [1.0, 0.25])
    wrapper.apply_gradients([(one, table)])
    np.testing.assert_allclose(rows.export(table)[1], [[-0.75]])


@pytest.mark.parametrize("version", ["default", "legacy", "keras 2"])
def test_clipping(started, version):
    module = keras_of(version)
    table = DynamicVariable(2, "0", var_type="hbm")
    table.sparse_read(tf.constant([1], tf.int64))
    slices = tf.IndexedSlices(tf.constant([[3.0, 0.5], [0.0, 0.5]]), tf.constant([1, 1], tf.int64))
    optimizers.wrap(module.SGD(1.0, clipvalue=2.0)).apply_gradients([(slices, table)])
    np.testing.assert_allclose(rows.export(table)[1], [[-2.0, -1.0]])
    optimizers.wrap(module.SGD(1.0, clipnorm=1.0)).apply_gradients([(slices, table)])
    np.testing.assert_allclose(rows.export(table)[1], [[-2 - 3 / np.sqrt(10), -1 - 1 / np.sqrt(10)]], rtol=1e-6)
    with pytest.raises(NotImplementedError, match="SGD: global_clipnorm is not implemented"):
        optimizers.wrap(module.SGD(1.0, global_clipnorm=1.0)).apply_gradients([(slices, table)])


def test_keras_3_is_refused_in_a_graph(started, graph):
    if hasattr(tf.keras, "__internal__"):
        pytest.skip("TensorFlow's Keras is Keras 2")
    with pytest.raises(NotImplementedError, match="got SGD of Keras 3 in a graph of TensorFlow 1"):
        optimizers.wrap(tf.keras.optimizers.SGD(1.0))


def test_a_table_that_is_gone_leaves_no_clone(started):
    wrapper, table = optimizers.wrap(keras_of("default").Adam(1.0)), DynamicVariable(DIM, "1")
    wrapper.apply_gradients([(tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([1], tf.int64)), table)])
    gone = weakref.ref(table)
    del table
    gc.collect()
    assert gone() is None


def test_sgd_in_static_mode(started):
    table = DynamicVariable(DIM, "1", var_type="hbm")
    table.to_static(tf.constant([4, 5], tf.int64))
    optimizers.SGD(0.5).apply_gradients([(tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([1])), table)])
    table.to_dynamic()
    np.testing.assert_allclose(rows.export(table)[1], [[1.0] * DIM, [0.5] * DIM])


@pytest.mark.parametrize("version", ["default", "legacy", "keras 2", "tensorflow 1"])
def test_other_variables_in_the_same_call(started, version):
    sgd = tf1.train.GradientDescentOptimizer(1.0) if version == "tensorflow 1" else keras_of(version).SGD(1.0)
    table, static, dense = DynamicVariable(DIM, "1"), make(np.ones([4, DIM], np.float32)), tf.Variable([1.0])
    wrapper = optimizers.wrap(sgd)
    variables = [table, static, dense, tf.Variable([2.0])]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [4])) + tf.reduce_sum(tf.gather(static, [1])) + dense[0]
    wrapper.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    np.testing.assert_allclose(rows.export(table)[1], [[0.0] * DIM])
    np.testing.assert_allclose(static.numpy()[:2], [[1.0] * DIM, [0.0] * DIM])
    np.testing.assert_allclose(dense, [0.0])
    assert wrapper.apply_gradients([(None, table)]) is None


def test_a_global_step_counts(started, graph):
    table = DynamicVariable(DIM, "1", name="table")
    step = tf1.train.get_or_create_global_step()
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, tf.constant([4, 4], tf.int64)))
    wrapper = optimizers.wrap(tf1.train.AdagradOptimizer(1.0, initial_accumulator_value=1.0))
    train_op = wrapper.apply_gradients([(tf1.gradients(loss, table)[0], table)], global_step=step)
    exported = rows.export(table)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op)
        assert session.run(step) == 1
        np.testing.assert_allclose(session.run(exported)[1], [[1 - 2 / np.sqrt(5)] * DIM], rtol=1e-6)


def test_sgd(started):
    table, static, dense = DynamicVariable(DIM, "1"), make(np.ones([4, DIM], np.float32)), tf.Variable([1.0])
    sgd = optimizers.SGD(0.5)
    with tf.GradientTape() as tape:
        loss = (
            tf.reduce_sum(tf.nn.embedding_lookup(table, [4, 4])) + tf.reduce_sum(tf.gather(static, [1, 1])) + dense[0]
        )
    sgd.apply_gradients(zip(tape.gradient(loss, [table, static, dense]), [table, static, dense], strict=True))
    np.testing.assert_allclose(rows.export(table)[1], [[0.0] * DIM])
    np.testing.assert_allclose(static.numpy()[:2], [[1.0] * DIM, [0.0] * DIM])
    np.testing.assert_allclose(dense, [0.5])
    sgd.lr.assign(1.0)
    assert float(sgd.lr) == 1.0


def test_what_cannot_be_wrapped_is_refused(started):
    for wrong in (None, optimizers.SGD(1.0), tf.Variable(1.0)):
        with pytest.raises(
            TypeError, match="OptimizerWrapper: got .* wanted an optimizer of tf.compat.v1.train or of Keras"
        ):
            optimizers.wrap(wrong)
    averaging = optimizers.wrap(keras_of("default").SGD(1.0, use_ema=True))
    averaging.apply_gradients([(tf.ones([1]), tf.Variable([1.0]))])
    with pytest.raises(NotImplementedError, match="use_ema of SGD is not implemented for dynamic variables"):
        slices = tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([1], tf.int64))
        averaging.apply_gradients([(slices, DynamicVariable(DIM, "1"))])
    table = DynamicVariable(DIM, "1")
    with pytest.raises(NotImplementedError, match="is dynamic: its gradient is tf.IndexedSlices"):
        optimizers.wrap(keras_of("default").SGD(1.0)).apply_gradients([(tf.ones([1, DIM]), table)])


def test_names_in_files(started):
    wanted = {"SGD": "SGD", "momentum": "SGD", "Adam": "Adam", "Adamax": "Adam", "Ftrl": "Ftrl"}
    for name, in_files in wanted.items():
        optimizer = OPTIMIZERS[name][0](keras_of("default"))
        assert slots.optimizer_name(optimizer) == slots.optimizer_name(optimizers.wrap(optimizer)) == in_files
    assert slots.optimizer_name(tf1.train.GradientDescentOptimizer(1.0)) == "SGD"
    assert slots.optimizer_name(tf1.train.AdagradOptimizer(1.0)) == "Adagrad"
    with pytest.raises(TypeError, match="optimizer: got RMSprop, wanted one of SGD, Adamax"):
        slots.optimizer_name(keras_of("default").RMSprop(1.0))
