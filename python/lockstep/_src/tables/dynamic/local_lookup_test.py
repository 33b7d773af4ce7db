"""Tests of a program's steps and a table's steps: which keys a table has, and the rows that gradients change."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.scope import scope
from lockstep._src.tables import dynamic
from lockstep._src.tables.dynamic import EmbeddingVariableOption, get_embedding_variable

v1 = tf.compat.v1
SGD = v1.train.GradientDescentOptimizer


def test_small_steps_move_rows_of_16_bits():
    table = get_embedding_variable("half", 64, value_dtype=tf.bfloat16, initializer=1.0)
    optimizer, keys = SGD(1e-3), np.arange(8)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(tf.nn.embedding_lookup(table, keys), tf.float32))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    for _ in range(100):
        step()
    rows = tf.cast(table.sparse_read(keys), tf.float32).numpy()
    assert abs(rows.mean() - 0.9) < 0.01
    assert np.mean(rows == 1.0) < 0.05


def training_graph(option, steps, keys):
    """Creates a table and a training operation on fed keys, with a global step that begins at `steps`."""
    table = get_embedding_variable("table", 2, initializer=1.0, ev_option=option)
    step = v1.Variable(steps, trainable=False, dtype=tf.int64)
    op = SGD(0.1).minimize(tf.reduce_sum(tf.nn.embedding_lookup(table, keys)), step)
    return table, op


def test_a_table_that_is_new_in_an_old_program_keeps_what_it_learns():
    with tf.Graph().as_default(), v1.Session() as session:
        option = EmbeddingVariableOption(evict_option=dynamic.GlobalStepEvict(100))
        table, op = training_graph(option, 1000, [5, 6])
        session.run(v1.global_variables_initializer())
        session.run(op)
        exported = session.run(table.export())
        np.testing.assert_array_equal(exported.keys, [5, 6])
        np.testing.assert_array_equal(exported.versions, [1000, 1000])


def test_steps_to_live_of_0_lets_all_live():
    with tf.Graph().as_default(), v1.Session() as session:
        option = EmbeddingVariableOption(evict_option=dynamic.GlobalStepEvict(0))
        table, op = training_graph(option, 0, [5, 6])
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(op)
        assert session.run(table.total_count()) == 2


@pytest.mark.parametrize("function", [False, True])
def test_steps_end_under_eager_execution_and_in_functions(function):
    table = get_embedding_variable(
        "table", 2, initializer=1.0, ev_option=EmbeddingVariableOption(evict_option=dynamic.GlobalStepEvict(2))
    )
    optimizer = SGD(0.1)

    def step(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, keys))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    step = tf.function(step) if function else step
    for keys in ([1, 2], [1, 3], [1, 4], [1, 5], [1, 6]):
        step(tf.constant(keys, tf.int64))
    np.testing.assert_array_equal(table.export().keys, [1, 5, 6])


@pytest.mark.parametrize("lookups", [1, 2])
def test_two_optimizers_of_a_run_end_one_step(lookups):
    with tf.Graph().as_default(), v1.Session() as session:
        option = EmbeddingVariableOption(evict_option=dynamic.GlobalStepEvict(2))
        table = get_embedding_variable("table", 2, initializer=1.0, ev_option=option)
        losses = [tf.reduce_sum(tf.nn.embedding_lookup(table, [3, 4])) for _ in range(lookups)]
        ops = [v1.train.AdagradOptimizer(0.1, name=name).minimize(losses["AB".index(name) % lookups]) for name in "AB"]
        session.run(v1.global_variables_initializer())
        for _ in range(4):
            session.run(ops)
        np.testing.assert_array_equal(session.run(table.export()).versions, [3, 3])


@pytest.mark.parametrize("optimizers", [1, 2])
def test_every_step_of_a_loop_in_one_run_ends(optimizers):
    option = EmbeddingVariableOption(evict_option=dynamic.GlobalStepEvict(3), record_version=True)
    table = get_embedding_variable("table", 2, initializer=1.0, ev_option=option)
    optimizers = [SGD(0.1) for _ in range(optimizers)]

    @tf.function
    def train(steps):
        for step in tf.range(steps):
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_sum(tf.nn.embedding_lookup(table, tf.stack([step, 1000])))
            for optimizer in optimizers:
                optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    train(tf.constant(20, tf.int64))
    exported = table.export()
    np.testing.assert_array_equal(exported.keys, [17, 18, 19, 1000])
    np.testing.assert_array_equal(exported.versions, [17, 18, 19, 19])


def test_a_table_with_the_clock_of_another_rounds_as_that_one():
    keys = np.arange(8)
    table, other = (
        get_embedding_variable(n, 64, value_dtype=tf.bfloat16, initializer=s) for n, s in (("a", 1.0), ("b", 0))
    )

    @tf.function
    def step(table):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(tf.nn.embedding_lookup(table, keys), tf.float32))
        SGD(1e-3).apply_gradients([(tape.gradient(loss, table), table)])

    for i in range(20):
        step(table)
        if i == 9:
            other.insert(table.export().keys, table.export().values)
            other.set_clock(table.clock())
        if i > 9:
            step(other)
    np.testing.assert_array_equal(other.clock(), table.clock())
    np.testing.assert_array_equal(
        tf.cast(other.sparse_read(keys), tf.float32), tf.cast(table.sparse_read(keys), tf.float32)
    )


def test_a_gradient_that_comes_late_changes_no_other_key():
    table = get_embedding_variable(
        "table", 2, initializer=1.0, ev_option=EmbeddingVariableOption(evict_option=dynamic.BudgetEvict(max_keys=4))
    )
    optimizer = SGD(1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table.sparse_read(np.arange(1, 9)))
    gradient = tape.gradient(loss, table)
    optimizer.apply_gradients([(gradient, table)])
    table.sparse_read([30, 31])
    optimizer.apply_gradients([(gradient, table)])
    with dynamic.evaluating():
        np.testing.assert_array_equal(table.sparse_read([30, 31]), np.ones([2, 2]))


def test_lookups_that_take_keys_in_run_in_one_order():
    results = set()
    for _ in range(5):
        with tf.Graph().as_default(), v1.Session() as session:
            option = EmbeddingVariableOption(
                filter_option=dynamic.CounterFilter(3), init_option=dynamic.InitializerOption(1.0)
            )
            table = get_embedding_variable("table", 1, ev_option=option)
            keys = np.arange(3000)
            rows = [table.sparse_read(np.concatenate([keys, keys[::-1]])) for _ in range(2)]
            session.run(v1.global_variables_initializer())
            results.add(tuple(float(r.sum()) for r in session.run(rows)))
    assert results == {(0.0, 6000.0)}


def test_other_outputs_of_unique_are_keys_as_well():
    with tf.Graph().as_default(), v1.Session() as session:
        table = get_embedding_variable("table", 1, ev_option=EmbeddingVariableOption(record_frequency=True))
        values, _, counts = tf.unique_with_counts(tf.constant([7, 7, 9], tf.int64), out_idx=tf.int64)
        reads = [table.sparse_read(counts), table.sparse_read(tf.identity(values))]
        with tf.control_dependencies(reads):
            frequencies = table.get_frequency([1, 2, 7, 9])
        session.run(v1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(frequencies), [1, 1, 2, 1])


def test_norms_in_a_scope_are_those_of_the_sums_of_rows():
    with tf.Graph().as_default(), scope(), v1.Session() as session:
        table = get_embedding_variable("table", 1, initializer=0.0)
        rows = table.sparse_read([1, 1, 2])
        (gradient,) = tf.gradients(tf.reduce_sum(rows * [[1.0], [2.0], [4.0]]), [table])
        norm = tf.linalg.global_norm([gradient])
        session.run(v1.global_variables_initializer())
        assert session.run(norm) == pytest.approx(5.0)


def frequencies(step, ids):
    option = EmbeddingVariableOption(record_frequency=True, filter_option=dynamic.CounterFilter(3))
    table = get_embedding_variable("table", 2, initializer=1.0, ev_option=option)
    step(lambda: tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum"))
    return table.get_frequency([1, 2, 3]).numpy(), table.export().keys.numpy()


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(
    "step", [lambda look_up: look_up(), lambda look_up: tf.function(look_up)()], ids=["eager", "function"]
)
def test_keys_are_counted_with_duplicates_under_eager_execution_as_in_a_function(ragged, step):
    ids = tf.ragged.constant([[1, 1, 2], [], [1, 3]], dtype=tf.int64)
    ids = ids if ragged else ids.to_sparse()
    counts, admitted = frequencies(step, ids)
    np.testing.assert_array_equal(counts, [3, 1, 1])
    np.testing.assert_array_equal(admitted, [1])


def test_graphs_that_are_gone_are_let_go():
    table = get_embedding_variable(
        "table", 2, ev_option=EmbeddingVariableOption(filter_option=dynamic.CounterFilter(2))
    )
    graphs = []
    for _ in range(2):
        function = tf.function(lambda keys: table.sparse_read(keys))
        graphs.append(weakref.ref(function.get_concrete_function(tf.TensorSpec([None], tf.int64)).graph))
        del function
    gc.collect()
    assert [graph() for graph in graphs] == [None, None]


def test_names_are_those_that_were_asked_for():
    with tf.Graph().as_default():
        v1.placeholder(tf.int64, name="user")
        with v1.variable_scope("", reuse=v1.AUTO_REUSE):
            table = get_embedding_variable("user", 2)
            assert get_embedding_variable("user", 2) is table
        assert table.logical_name == "user"
        with pytest.raises(ValueError, match=r"tf\.function"):
            tf.function(lambda: get_embedding_variable("other", 2).sparse_read([1]))()


def test_what_is_not_trained_takes_no_keys_in():
    table = get_embedding_variable("table", 2, initializer=1.0, trainable=False)
    np.testing.assert_array_equal(table.sparse_read([4]), [[1, 1]])
    assert int(table.total_count()) == 0
