"""Tests that optimizers of Keras 2 and Keras 3 do to tables of SOK 1.x what they do to an ordinary variable."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import any_keras, embedding_tables, job, native_optimizers, plugin_adam, rows, version_1
from lockstep._src.compat.sok.any_keras_test import keras_2

tf_keras = keras_2()
# With TensorFlow 2.15, the first is Keras 2 as well.
keras, new, legacy = tf.keras.optimizers, tf_keras.optimizers, tf_keras.optimizers.legacy
KEYS, DIM = 6, 3
# Rows 4 and 5 have no gradient in the last two steps; an Adam that is not lazy still moves them by its moments.
STEPS = ([0, 4, 5, 4], [0, 1, 1, 2], [3, 1])
OPTIMIZERS = {
    "tf.keras SGD": lambda: keras.SGD(0.1),
    "tf.keras Adam": lambda: keras.Adam(0.1),
    "tf.keras Adagrad": lambda: keras.Adagrad(0.1),
    "tf.keras Adam, clipvalue": lambda: keras.Adam(0.1, clipvalue=0.5),
    "2 SGD": lambda: new.SGD(0.1),
    "2 SGD, momentum": lambda: new.SGD(0.1, momentum=0.9),
    "2 Adam": lambda: new.Adam(new.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "2 Adam, clipvalue": lambda: new.Adam(0.1, clipvalue=0.5),
    "2 Adagrad": lambda: new.Adagrad(0.1),
    "2 Ftrl": lambda: new.Ftrl(0.1),
    "2 RMSprop": lambda: new.RMSprop(0.1),
    "legacy SGD": lambda: legacy.SGD(0.1),
    "legacy SGD, momentum": lambda: legacy.SGD(0.1, momentum=0.9),
    "legacy Adam": lambda: legacy.Adam(new.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "legacy Adam, clipvalue": lambda: legacy.Adam(0.1, clipvalue=0.5),
    "legacy Adagrad": lambda: legacy.Adagrad(0.1, initial_accumulator_value=0.3),
    "legacy Ftrl": lambda: legacy.Ftrl(0.1, initial_accumulator_value=0.3),
    "legacy Adamax": lambda: legacy.Adamax(0.1),
    "legacy Adadelta": lambda: legacy.Adadelta(0.1),
}


@pytest.fixture(autouse=True)
def started(monkeypatch):
    monkeypatch.setattr(job, "_tool", "single")
    monkeypatch.setattr(version_1, "_program", version_1._Program(4, None))


def make_table(hashed=True):
    table = embedding_tables.EmbeddingVariable.CreateInstances(
        shape=[KEYS, DIM], use_hashtable=hashed, initializer=tf.ones_initializer()
    )
    if hashed:
        # Row i has key i; other orders are possible.
        table.insert(np.arange(KEYS), np.ones([KEYS, DIM]))
    return table


def gradient_of(keys):
    values = np.random.default_rng(len(keys)).normal(size=[len(keys), DIM]).astype(np.float32)
    return tf.IndexedSlices(tf.constant(values), tf.constant(keys, tf.int64), tf.constant([KEYS, DIM], tf.int64))


def slices_of(value, row):
    return tf.IndexedSlices(tf.fill([1, DIM], value), tf.constant([row], tf.int64), tf.constant([KEYS, DIM], tf.int64))


def apply(optimizer, gradient, variable, others=()):
    with native_optimizers.OptimizerScope([variable]):
        optimizer.apply_gradients([(gradient, variable), *others], experimental_aggregate_gradients=False)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_updates_are_those_of_an_ordinary_variable(name, in_function):
    table, variable = make_table(), tf.Variable(tf.ones([KEYS, DIM]))
    optimizer, plain = OPTIMIZERS[name](), OPTIMIZERS[name]()

    def step(gradient):
        numbered = tf.IndexedSlices(gradient.values, table.find(gradient.indices))
        apply(optimizer, numbered, table)

    if in_function:
        step = tf.function(step, reduce_retracing=True)
    for keys in STEPS:
        gradient = gradient_of(keys)
        step(gradient)
        # Keras 3 squares slices of one row one by one, and Keras 2 clips them so; for tables they are summed before.
        is_dense = name.startswith("tf.keras") or "clip" in name
        plain.apply_gradients([(tf.convert_to_tensor(gradient) if is_dense else gradient, variable)])
    np.testing.assert_allclose(rows.read(table)[1], variable, 1e-5, 1e-6)
    assert int(optimizer.iterations) == len(STEPS)


@pytest.mark.parametrize("name", ["tf.keras Adam", "2 Adam", "legacy Adam"])
def test_optimizer_of_a_table_and_other_variables(name):
    table, variable, unused, optimizer = make_table(), tf.Variable([1.0]), tf.Variable(2.0), OPTIMIZERS[name]()
    for _ in range(2):
        slices = slices_of(1.0, 0)
        apply(optimizer, slices, table, [(tf.constant([1.0]), variable), (None, unused)])
    # The first step of Adam is about the learning rate.
    assert int(optimizer.iterations) == 2
    np.testing.assert_allclose(rows.read(table)[1][0], np.full(DIM, variable[0]), 1e-5)
    assert variable[0] < 0.9


@pytest.mark.parametrize("make", [lambda: new.Adam(0.1), lambda: legacy.Adam(0.1)], ids=["2", "legacy"])
def test_loss_scaling_of_keras_2(make):
    tables, plain = [make_table(), make_table(hashed=False)], tf.Variable(tf.ones([KEYS, DIM]))
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(make(), initial_scale=8.0)

    @tf.function
    def step(factor):
        variables = [*tables, plain]
        gradients = [slices_of(factor * optimizer.loss_scale, 2) for _ in variables]
        with native_optimizers.OptimizerScope(variables):
            pairs = zip(optimizer.get_unscaled_gradients(gradients), variables, strict=True)
            optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

    for factor in (1.0, float("inf"), 1.0):
        step(tf.constant(factor))
    assert float(optimizer.loss_scale) == 4
    assert 0.8 < plain[2][0] < 0.9
    for table in tables:
        np.testing.assert_allclose(rows.read(table)[1], plain, 1e-6)


@pytest.mark.pairwise
@pytest.mark.parametrize("name", ["2 SGD, momentum", "2 Adagrad", "legacy SGD", "legacy Adam", "plugin"])
@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
def test_strategy_with_one_replica(name, hashed, scaled):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])

    def make():
        optimizer = plugin_adam.Adam(0.1) if name == "plugin" else OPTIMIZERS[name]()
        return optimizer if not scaled else tf_keras.mixed_precision.LossScaleOptimizer(optimizer)

    with any_keras.using(tf_keras):
        with strategy.scope():
            table, optimizer = make_table(hashed), make()
        variable, plain = tf.Variable(tf.ones([KEYS, DIM])), make() if name != "plugin" else legacy.Adam(0.1)

    @tf.function
    def step():
        with native_optimizers.OptimizerScope([table]):
            optimizer.apply_gradients([(slices_of(1.0, 2), table)], experimental_aggregate_gradients=False)

    for _ in range(2):
        strategy.run(step)
        plain.apply_gradients([(slices_of(1.0, 2), variable)])
    np.testing.assert_allclose(rows.read(table)[1], variable, 1e-5)


def test_strategy_and_other_variables_in_one_optimizer():
    strategy, tables = tf.distribute.MirroredStrategy(["/cpu:0"]), [make_table(), make_table(hashed=False)]
    with strategy.scope():
        variable, optimizer = tf.Variable(1.0), legacy.SGD(0.1)
    pairs = [*((slices_of(1.0, 2), table) for table in tables), (tf.constant(1.0), variable)]
    strategy.run(lambda: optimizer.apply_gradients(pairs))
    assert variable.numpy() == pytest.approx(0.9)
    assert int(optimizer.iterations.numpy()) == 1
    for table in tables:
        np.testing.assert_allclose(rows.read(table)[1][2], np.full(DIM, 0.9), 1e-5)
    with pytest.raises(NotImplementedError, match="Adamax is not implemented for tables in a strategy"):
        strategy.run(lambda: legacy.Adamax().apply_gradients(pairs))


def test_scope_checks_its_argument():
    with pytest.raises(RuntimeError, match="trainable_variables must be a list or tuple"):
        native_optimizers.OptimizerScope(make_table())
    scope = native_optimizers.OptimizerScope((make_table(), tf.Variable(1.0)))
    with pytest.raises(KeyError), scope as entered:
        assert entered is scope
        raise KeyError


def test_what_is_not_implemented_is_an_error(monkeypatch):
    table = make_table()
    slices = slices_of(1.0, 0)
    with pytest.raises(NotImplementedError, match="Nadam"):
        apply(legacy.Nadam(), slices, table)
    with pytest.raises(NotImplementedError, match="weight_decay"):
        apply(new.AdamW(0.1), slices, table)
    with pytest.raises(NotImplementedError, match="its gradient is tf.IndexedSlices, got"):
        apply(legacy.SGD(0.1), tf.ones([KEYS, DIM]), table)
    monkeypatch.setattr(job, "is_shared", lambda: True)
    for optimizer in (new.Adam(0.1, clipnorm=1.0), legacy.Adam(0.1, clipnorm=1.0)):
        with pytest.raises(NotImplementedError, match="clipping by norm is not implemented"):
            apply(optimizer, slices, table)
    np.testing.assert_array_equal(rows.read(table)[1], np.ones([KEYS, DIM]))


# sok.optimizers.Adam


@pytest.mark.parametrize("library", [tf.keras, tf_keras], ids=["tf.keras", "2"])
@pytest.mark.parametrize("hashed", [True, False])
def test_adam_of_tables(library, hashed):
    table, variable = make_table(hashed), tf.Variable(tf.ones([KEYS, DIM]))
    with any_keras.using(library):
        # A process may have several, also after lookups, and a step may touch no row of a rank.
        optimizer, other = plugin_adam.Adam(lr=0.1, epsilon=None, unknown=1), plugin_adam.Adam(0.3)
    assert isinstance(optimizer, plugin_adam.Adam)
    assert isinstance(optimizer, keras.Adam if any_keras.is_keras_3(library) else legacy.Adam)
    plain = legacy.Adam(0.1)
    for keys in (*STEPS, []):
        gradient = gradient_of(keys)
        numbers = table.find(gradient.indices) if hashed else gradient.indices
        optimizer.apply_gradients([(tf.IndexedSlices(gradient.values, numbers, gradient.dense_shape), table)])
        plain.apply_gradients([(gradient, variable)])
    np.testing.assert_allclose(rows.read(table)[1], variable, 1e-5, 1e-5)
    assert optimizer.get_config()["name"] == other.get_config()["name"] == "Plugin_Adam"
    assert type(optimizer).from_config(optimizer.get_config()).get_config() == optimizer.get_config()
    assert optimizer.initializer is None
    with pytest.raises(ValueError, match="can only be used to EmbeddingVariable. But got <tf.Variable"):
        optimizer.apply_gradients([(tf.constant(1.0), tf.Variable(1.0))])
    with pytest.raises(NotImplementedError, match=r"the gradient of 'EmbeddingVariable.*' is dense"):
        optimizer.apply_gradients([(tf.ones([KEYS, DIM]), table)])


def test_adam_with_loss_scaling():
    table = make_table()
    with any_keras.using(tf_keras):
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(plugin_adam.Adam(0.1))
    for factor in (1.0, float("inf")):
        optimizer.apply_gradients([(slices_of(factor, 2), table)])
    np.testing.assert_allclose(rows.read(table)[1][2], np.full(DIM, 0.9), 1e-4)
    if not any_keras.is_keras_3(tf.keras):
        return
    own = make_table()
    scaled = tf.keras.optimizers.LossScaleOptimizer(plugin_adam.Adam(0.1), initial_scale=8.0)
    scaled.apply_gradients([(slices_of(8.0, 2), own)])
    np.testing.assert_allclose(rows.read(own)[1][2], np.full(DIM, 0.9), 1e-4)
