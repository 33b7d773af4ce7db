"""Tests that fused updates give the results and slots of TensorFlow 1's optimizers, and run only for known ones."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives.collectives_order_test import executed
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables.updates import rule_of
from lockstep._src.tables.updates.lazy_adam import LazyAdamOptimizer

tf1 = tf.compat.v1
train = tf1.train


def decaying(rate):
    """Returns a learning rate that depends on the global step."""
    return train.exponential_decay(rate, train.get_or_create_global_step(), decay_steps=2, decay_rate=0.7)


# Arguments of FTRL in all libraries.
FTRL_ARGUMENTS = {
    "learning_rate_power": -0.6,
    "initial_accumulator_value": 0.3,
    "l1_regularization_strength": 0.02,
    "l2_regularization_strength": 0.03,
    "l2_shrinkage_regularization_strength": 0.01,
    "beta": 0.1,
}
OPTIMIZERS = {
    "GradientDescent": lambda: train.GradientDescentOptimizer(0.3),
    "GradientDescent, decaying rate": lambda: train.GradientDescentOptimizer(decaying(0.3)),
    "Momentum": lambda: train.MomentumOptimizer(0.2, 0.9),
    "Nesterov": lambda: train.MomentumOptimizer(decaying(0.2), 0.9, use_nesterov=True, use_locking=True),
    "Adagrad": lambda: train.AdagradOptimizer(0.3, initial_accumulator_value=0.2, name="Other"),
    "Adam": lambda: train.AdamOptimizer(0.02),
    "Adam, all arguments": lambda: train.AdamOptimizer(decaying(0.05), beta1=0.8, beta2=0.99, epsilon=1e-4),
    "lazy Adam": lambda: LazyAdamOptimizer(0.05, beta1=0.8, beta2=0.99, epsilon=1e-4),
    "Ftrl": lambda: train.FtrlOptimizer(0.3),
    "Ftrl, all arguments": lambda: train.FtrlOptimizer(0.3, **FTRL_ARGUMENTS, accum_name="a", linear_name="l"),
    "Ftrl, l1": lambda: train.FtrlOptimizer(0.3, l1_regularization_strength=0.2),
    "RMSProp": lambda: train.RMSPropOptimizer(0.05),
    "RMSProp, all arguments": lambda: train.RMSPropOptimizer(0.05, decay=0.99, momentum=0.5, epsilon=1e-3),
    "centered RMSProp": lambda: train.RMSPropOptimizer(decaying(0.05), momentum=0.5, centered=True),
}
# name, shape, type of the indices, number of gradients in each step
TABLES = (
    ("user", [13, 8], tf.int64, (6, 0, 40, 9)),
    ("user/item", [500, 19], tf.int32, (300, 120, 0, 1)),
    ("weight", [7], tf.int64, (5, 5, 5, 5)),
    ("cube", [4, 3, 2], tf.int32, (2, 3, 0, 7)),
)
STEPS = 4


def gradient(number, step):
    """Returns values and indices of a table's gradient, with duplicates if there are enough rows."""
    _, (rows, *dims), _, counts = TABLES[number]
    random = np.random.default_rng([number, step])
    return random.normal(size=[counts[step], *dims]), random.integers(0, rows, counts[step])


def build(make_optimizer, dtype=tf.float32, make_tables=None):
    """Builds tables and an optimizer's step for all of them; returns them and the feeds of each step."""
    tables, pairs, feeds = [], [], [{} for _ in range(STEPS)]
    for number, (name, shape, index_type, _) in enumerate(TABLES):
        begin = np.random.default_rng(number).normal(size=shape)
        table = tf1.get_variable(name, initializer=tf.constant(begin, dtype), use_resource=True)
        values = tf1.placeholder(dtype, [None, *shape[1:]])
        indices = tf1.placeholder(index_type, [None])
        tables.append(table)
        pairs.append((tf.IndexedSlices(values, indices, tf.constant(shape)), table))
        for step in range(STEPS):
            feeds[step].update(zip((values, indices), gradient(number, step), strict=True))
    dense = tf1.get_variable("dense", initializer=tf.ones([3], dtype), use_resource=True)
    pairs.append((tf.constant([1.0, 2.0, 3.0], dtype), dense))
    optimizer = make_optimizer()
    return optimizer, optimizer.apply_gradients(pairs, train.get_or_create_global_step()), feeds


def trained(make_optimizer, dtype=tf.float32):
    """Returns variables by name after each step, and the types of the graph's operations."""
    with tf.Graph().as_default(), tf1.Session() as session:
        _, train_op, feeds = build(make_optimizer, dtype)
        session.run(tf1.global_variables_initializer())
        variables = {v.op.name: v for v in tf1.global_variables()}
        after = []
        for feed in feeds:
            session.run(train_op, feed)
            after.append(session.run(variables))
        return after, [op.type for op in session.graph.get_operations()], executed(session, train_op, feeds[0])


def assert_same(got, expected):
    """Compares to 1e-6 of the largest number, because a sum of large numbers may be small."""
    assert got.keys() == expected.keys()
    for variable, value in expected.items():
        tolerance = 1e-6 * max(1, np.max(np.abs(value)))
        np.testing.assert_allclose(got[variable], value, rtol=1e-6, atol=tolerance, err_msg=variable)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_numbers_and_names_are_tensorflows(name):
    expected, types, _ = trained(OPTIMIZERS[name])
    assert "LockstepSparseUpdate" not in types
    with scope():
        after, types, run = trained(OPTIMIZERS[name])
    assert types.count("LockstepSparseUpdate") == len(TABLES)
    assert not [t for t in types if "SparseApply" in t or t == "ResourceScatterAdd"]
    assert [node.op for node in run.values()].count("LockstepSparseUpdate") == 1, "all tables are one operation"
    for step in range(STEPS):
        assert_same(after[step], expected[step])


def test_updates_are_one_by_one_under_eager_execution():
    values, indices = gradient(0, 0)
    begin = np.random.default_rng(0).normal(size=TABLES[0][1]).astype(np.float32)

    def stepped():
        table = tf.Variable(begin, name="table")
        optimizer = train.AdamOptimizer(0.1)
        for _ in range(2):
            slices = tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(indices))
            optimizer.apply_gradients([(slices, table)])
        return [table.numpy(), optimizer.get_slot(table, "m").numpy()]

    expected = stepped()
    with scope():
        for got, wanted in zip(stepped(), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def fused_operations(make_optimizer, dtype=tf.float32, **options):
    with tf.Graph().as_default() as graph, scope(**options):
        build(make_optimizer, dtype)
        return [op for op in graph.get_operations() if op.type == "LockstepSparseUpdate"]


class Scaling(train.AdagradOptimizer):
    """A subclass with its own method for sparse gradients."""

    def _resource_apply_sparse(self, grad, var, indices):
        return super()._resource_apply_sparse(2.0 * grad, var, indices)


class Summing(train.MomentumOptimizer):
    """A subclass that sums gradients in another way."""

    def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices):
        return super()._resource_apply_sparse_duplicate_indices(-grad, handle, indices)


class Renamed(train.AdagradOptimizer):
    """A subclass that overrides no method for sparse gradients."""

    def _prepare(self):
        super()._prepare()
        self._learning_rate_tensor = 0.5 * self._learning_rate_tensor


def with_a_method_of_its_own():
    optimizer = train.AdagradOptimizer(0.1)
    optimizer._resource_apply_sparse = lambda grad, var, indices: tf.no_op()
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scaling(0.1),
        lambda: Summing(0.1, 0.9),
        with_a_method_of_its_own,
        lambda: train.AdadeltaOptimizer(0.1),
        lambda: train.ProximalAdagradOptimizer(0.1),
    ],
)
def test_optimizers_with_a_way_of_their_own_keep_it(make):
    assert fused_operations(make) == []
    assert rule_of(make()) is None


def test_a_subclass_that_changes_hyperparameters_alone_is_fused():
    expected, _, _ = trained(lambda: Renamed(0.4))
    with scope():
        after, types, _ = trained(lambda: Renamed(0.4))
    assert types.count("LockstepSparseUpdate") == len(TABLES)
    np.testing.assert_allclose(after[-1]["user"], expected[-1]["user"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16])
def test_other_types_keep_tensorflows_kernels(dtype):
    expected, _, _ = trained(OPTIMIZERS["Adagrad"], dtype)
    with scope():
        after, types, _ = trained(OPTIMIZERS["Adagrad"], dtype)
    assert "LockstepSparseUpdate" not in types
    for variable, value in expected[-1].items():
        np.testing.assert_array_equal(after[-1][variable], value)


def test_only_a_scope_fuses_and_only_where_its_option_says_so():
    make = OPTIMIZERS["Adagrad"]
    assert len(fused_operations(make)) == len(TABLES)
    assert fused_operations(make, fused_updates=False) == []
    with tf.Graph().as_default() as graph:
        build(make)
        assert "LockstepSparseUpdate" not in [op.type for op in graph.get_operations()]


def test_variables_of_a_reference_type_keep_tensorflows_kernels():
    with tf.Graph().as_default() as graph, scope():
        table = tf1.get_variable("table", [4, 2], use_resource=False)
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]))
        train.AdagradOptimizer(0.1).apply_gradients([(slices, table)])
        types = [op.type for op in graph.get_operations()]
    assert "SparseApplyAdagrad" in types and "LockstepSparseUpdate" not in types


def lookups(make_optimizer):
    """Returns a loss over looked-up rows, and gradients that are clipped by their common norm."""
    tables = [
        tf1.get_variable(f"t{i}", initializer=np.random.default_rng(i).normal(size=[9, 4]).astype(np.float32))
        for i in range(3)
    ]
    # The ids are distinct: in a scope, a norm counts slices of one row as their sum, and separately outside.
    ids = tf.constant([3, 1, 7, 8, 0])
    loss = tf.add_n([tf.reduce_sum(tf.sin((i + 1) * tf.nn.embedding_lookup(t, ids))) for i, t in enumerate(tables)])
    optimizer = make_optimizer()
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 0.5)
    return optimizer.apply_gradients(zip(clipped, variables, strict=True), train.get_or_create_global_step())


@pytest.mark.parametrize("name", ["Adagrad", "Adam", "Ftrl, all arguments"])
def test_a_checkpoint_goes_from_fused_to_unfused_and_back(name, tmp_path):
    """Trains in turns with and without fused updates, also sharded tables, and compares with plain TensorFlow."""

    def run(steps, fused, plain=False):
        folder = str(tmp_path / ("plain" if plain else "ours"))
        with tf.Graph().as_default(), contextlib.nullcontext() if plain else embedding_scope(fused_updates=fused):
            train_op = lookups(OPTIMIZERS[name])
            with train.MonitoredTrainingSession(
                checkpoint_dir=folder, save_checkpoint_steps=1, log_step_count_steps=0
            ) as session:
                for _ in range(steps):
                    session.run(train_op)
        reader = train.load_checkpoint(folder)
        return {v: reader.get_tensor(v) for v in reader.get_variable_to_shape_map()}

    for steps, fused in [(2, True), (2, False), (2, True)]:
        got = run(steps, fused)
        assert_same(got, run(steps, fused, plain=True))
