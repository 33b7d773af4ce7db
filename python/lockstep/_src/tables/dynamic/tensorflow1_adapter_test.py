"""Tests that optimizers of TensorFlow 1 train a dynamic table as they train a variable, and end its steps."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_resource_variable_ops

from lockstep._src.tables.dynamic import EmbeddingVariableOption, get_embedding_variable

v1 = tf.compat.v1
train = v1.train
ROWS, DIM = 40, 5
MATRIX = np.random.RandomState(0).randn(ROWS, DIM).astype(np.float32)
# Keys that are larger than the number of rows of any matrix.
KEYS = np.random.RandomState(1).randint(-(2**62), 2**62, ROWS)


class UsersOwn(train.Optimizer):
    """An optimizer with a slot and an update that the engine does not know."""

    def __init__(self):
        super().__init__(use_locking=False, name="UsersOwn")

    def _create_slots(self, var_list):
        for v in var_list:
            self._get_or_make_slot_with_initializer(
                v, v1.constant_initializer(0.25), v.get_shape(), v.dtype, "seen", self._name
            )

    def _resource_apply_dense(self, grad, handle):
        return handle.assign_sub(0.1 * grad).op

    def _resource_apply_sparse(self, grad, handle, indices):
        seen = self.get_slot(handle, "seen")
        add = seen.scatter_add(tf.IndexedSlices(tf.abs(grad), indices))
        with tf.control_dependencies([add]):
            step = 0.1 * grad / tf.gather(seen, indices)
        return handle.scatter_sub(tf.IndexedSlices(step, indices)).op


OPTIMIZERS = {
    "GradientDescent": lambda: train.GradientDescentOptimizer(0.3),
    "Momentum": lambda: train.MomentumOptimizer(0.2, 0.9),
    "Adagrad": lambda: train.AdagradOptimizer(0.3),
    "Adam": lambda: train.AdamOptimizer(0.05),
    "Ftrl": lambda: train.FtrlOptimizer(0.3, l1_regularization_strength=0.01),
    "RMSProp": lambda: train.RMSPropOptimizer(0.05, momentum=0.5),
    "Adadelta": lambda: train.AdadeltaOptimizer(0.5),
    "AdagradDA": lambda: train.AdagradDAOptimizer(0.3, train.get_or_create_global_step()),
    "ProximalAdagrad": lambda: train.ProximalAdagradOptimizer(0.3),
    "of a user": UsersOwn,
}


def run(values, *steps):
    """Runs graph operations in a session of their graph, with fresh variables."""
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return values(session, *steps)


def trained(make_optimizer, dynamic):
    with tf.Graph().as_default():
        if dynamic:
            table = get_embedding_variable("table", DIM, initializer=v1.zeros_initializer())
            start = table.insert(KEYS, MATRIX)
        else:
            table, start = v1.get_variable("table", initializer=MATRIX, use_resource=True), tf.no_op()
        # A dense variable beside it, so that an optimizer has both kinds.
        dense = v1.get_variable("dense", [DIM, 1], initializer=v1.ones_initializer(), use_resource=True)
        places = v1.placeholder(tf.int64, [None])
        ids = tf.gather(KEYS, places) if dynamic else places
        loss = tf.reduce_sum(tf.sin(tf.nn.embedding_lookup(table, ids) @ dense))
        step = make_optimizer().minimize(loss, train.get_or_create_global_step())
        result = tf.nn.embedding_lookup(table, KEYS if dynamic else np.arange(ROWS)), dense

        def values(session):
            session.run(start)
            for i in range(4):
                session.run(step, {places: np.random.RandomState(i).randint(0, ROWS, 15)})
            return session.run(result)

        return run(values)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_trains_it_as_it_trains_a_variable(name):
    rows, dense = trained(OPTIMIZERS[name], dynamic=True)
    expected, expected_dense = trained(OPTIMIZERS[name], dynamic=False)
    np.testing.assert_allclose(rows, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(dense, expected_dense, rtol=1e-6, atol=1e-6)


def gradient_of(table, keys):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table.sparse_read(tf.constant(keys, tf.int64)))
    return tape.gradient(loss, table)


@pytest.mark.parametrize("name", ["GradientDescent", "Adadelta"], ids=["a rule", "a stand-in"])
def test_a_dense_gradient_is_refused(name):
    table = get_embedding_variable("table", DIM)
    with pytest.raises(NotImplementedError, match="table 'table' is dynamic: its gradient is tf.IndexedSlices, got"):
        OPTIMIZERS[name]().apply_gradients([(tf.zeros([3, DIM]), table)])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_as_before_after_it_has_applied_gradients(name):
    with tf.Graph().as_default():
        optimizer = OPTIMIZERS[name]()
        before = set(vars(optimizer))
        table = get_embedding_variable("table", DIM)
        optimizer.minimize(tf.reduce_sum(table.sparse_read(tf.constant([3], tf.int64))))
        assert not {"_create_slots", "_zeros_slot", "_get_or_make_slot"} & (set(vars(optimizer)) - before)


@pytest.mark.parametrize("name", ["Adagrad", "Adadelta"], ids=["a rule", "a stand-in"])
def test_slots_are_columns_of_the_table(name):
    table, optimizer = get_embedding_variable("table", DIM), OPTIMIZERS[name]()
    keys = [3, 9, 3]
    optimizer.apply_gradients([(gradient_of(table, keys), table)])
    slot = {"Adagrad": "Adagrad/accumulator", "Adadelta": "Adadelta/accum"}[name]
    # The gradients of a key's lookups are summed: 2 and 1.
    squares = np.outer([4.0, 1.0], np.ones(DIM))
    wanted = {"Adagrad": 0.1 + squares, "Adadelta": 0.05 * squares}[name]
    np.testing.assert_allclose(table.export_slots(slot)[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("dims", [(4, 3), (3, 3)], ids=["another dimension", "the same"])
def test_one_optimizer_trains_tables_that_come_and_go(dims):
    optimizer = OPTIMIZERS["Adadelta"]()
    trained = []
    for dim in dims:
        table = get_embedding_variable("table", dim, initializer=1.0)
        optimizer.apply_gradients([(gradient_of(table, [3]), table)])
        trained.append(table.export().values.numpy())
        del table
    variable = tf.Variable(tf.ones([1, dims[0]]))
    OPTIMIZERS["Adadelta"]().apply_gradients([(tf.ones([1, dims[0]]), variable)])
    for rows, dim in zip(trained, dims, strict=True):
        np.testing.assert_allclose(rows, variable.numpy()[:, :dim], rtol=1e-6)


@pytest.mark.parametrize("global_step", [None, 7], ids=["counted", "given"])
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_each_application_ends_a_step(global_step, in_graph):
    option = EmbeddingVariableOption(record_version=True)
    steps = [[1], [2], [1, 3]]
    if in_graph:
        with tf.Graph().as_default(), v1.Session() as session:
            table = get_embedding_variable("table", DIM, ev_option=option)
            step = None if global_step is None else v1.get_variable("step", initializer=np.int64(global_step))
            keys = v1.placeholder(tf.int64, [None])
            apply = train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(table.sparse_read(keys)), step)
            session.run(v1.global_variables_initializer())
            for batch in steps:
                session.run(apply, {keys: batch})
            versions = session.run(table.get_version([1, 2, 3]))
    else:
        table = get_embedding_variable("table", DIM, ev_option=option)
        step = None if global_step is None else tf.Variable(global_step, dtype=tf.int64)
        for batch in steps:
            train.AdagradOptimizer(0.1).apply_gradients([(gradient_of(table, batch), table)], step)
        versions = table.get_version([1, 2, 3]).numpy()
    # The three steps end as the numbers first + 1, first + 2 and first + 3; the lookups after an end have its number.
    first = 0 if global_step is None else global_step
    assert versions.tolist() == [first + 2, first + 1, first + 2]


@pytest.mark.parametrize("pool", [tf.nn.embedding_lookup_sparse, tf.nn.safe_embedding_lookup_sparse])
def test_pooled_lookups_count_each_id(pool):
    table = get_embedding_variable("table", DIM, ev_option=EmbeddingVariableOption(record_frequency=True))
    pool(table, tf.sparse.from_dense(tf.constant([[5, 5, 6], [5, 0, 0]], tf.int64)), None, combiner="sum")
    np.testing.assert_array_equal(table.get_frequency([5, 6]), [3, 1])


@pytest.mark.parametrize("type_", [tf.int32, tf.int64])
def test_the_shape_of_a_table_is_that_of_its_handle_and_other_shapes_are_tensorflows(type_):
    with tf.Graph().as_default() as graph, v1.Session() as session:
        table = get_embedding_variable("table", DIM)
        variable = v1.get_variable("variable", [2, 3], use_resource=True)
        shape = gen_resource_variable_ops.variable_shape(table.handle, type_)
        assert shape.dtype == type_ and session.run(shape).tolist() == [0, DIM]
        assert not [op for op in graph.get_operations() if op.type == "VariableShape"]
        session.run(v1.global_variables_initializer())
        assert session.run(gen_resource_variable_ops.variable_shape(variable.handle, type_)).tolist() == [2, 3]
