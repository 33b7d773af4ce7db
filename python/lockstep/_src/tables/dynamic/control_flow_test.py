"""Tests that lookups in branches train a table as they train a variable, and that lookups in loops are refused."""

from __future__ import annotations

import contextlib
import logging

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.scope import scope
from lockstep._src.tables.dynamic import get_embedding_variable

v1 = tf.compat.v1
ROWS = 12


@contextlib.contextmanager
def control_flow(version):
    enabled = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if version == 2 else v1.disable_control_flow_v2)()
    try:
        yield
    finally:
        (v1.enable_control_flow_v2 if enabled else v1.disable_control_flow_v2)()


def read(table, *keys):
    return tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, tf.constant(keys, tf.int64))))


def pooled(table):
    ids = tf.sparse.from_dense(tf.constant([[1, 2], [2, 3]], tf.int64))
    return tf.reduce_sum(tf.square(tf.nn.embedding_lookup_sparse(table, ids, None, combiner="mean")))


# Functions of a table and a placeholder.
BRANCHES = {
    "one branch": lambda t, n: tf.cond(n > 1, lambda: read(t, 1, 2), lambda: 0.0),
    "both branches": lambda t, n: tf.cond(n > 1, lambda: read(t, 1, 2), lambda: read(t, 2, 5)),
    "beside a lookup": lambda t, n: read(t, 1, 5) + tf.cond(n > 1, lambda: read(t, 1), lambda: 0.0),
    "pooled": lambda t, n: tf.cond(n > 1, lambda: pooled(t), lambda: 0.0),
    "branch in a branch": lambda t, n: tf.cond(
        n > 0, lambda: tf.cond(n > 1, lambda: read(t, 3), lambda: 0.0), lambda: 0.0
    ),
    "case": lambda t, n: tf.switch_case(n, [lambda: read(t, 1, 2), lambda: 0.0, lambda: read(t, 2)]),
    "function": lambda t, n: tf.function(lambda: tf.cond(n > 1, lambda: read(t, 1, 2), lambda: 0.0))(),
}
LOOPS = {
    "while_loop": lambda t, n: tf.while_loop(
        lambda i, _: i < n, lambda i, total: (i + 1, total + read(t, 4) * tf.cast(i, tf.float32)), [0, 0.0]
    )[1],
    "map_fn": lambda t, n: tf.reduce_sum(
        tf.map_fn(
            lambda i: tf.square(tf.nn.embedding_lookup(t, i)), tf.constant([1, 2, 2]), fn_output_signature=tf.float32
        )
    ),
    "branch in a loop": lambda t, n: tf.while_loop(
        lambda i, _: i < n,
        lambda i, total: (i + 1, total + tf.cond(tf.equal(i, 1), lambda: read(t, 4, 5), lambda: 0.0)),
        [0, 0.0],
    )[1],
}


def trained(loss_of, dynamic):
    """Returns [ROWS], the first values of all rows after steps on both sides of each branch."""
    with tf.Graph().as_default(), scope(), v1.Session() as session:
        if dynamic:
            table = get_embedding_variable("table", 2, initializer=1.0)
        else:
            table = v1.get_variable("table", [ROWS, 2], initializer=v1.ones_initializer(), use_resource=True)
        number = v1.placeholder(tf.int32, [])
        step = v1.train.AdagradOptimizer(0.1).minimize(loss_of(table, number))
        session.run(v1.global_variables_initializer())
        for n in (2, 0, 1, 2):
            session.run(step, {number: n})
        return session.run(table.sparse_read(np.arange(ROWS)))[:, 0]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("where", BRANCHES)
def test_lookups_in_branches_train_what_they_train_of_a_variable(version, where):
    with control_flow(version):
        rows, expected = (trained(BRANCHES[where], dynamic) for dynamic in (True, False))
    np.testing.assert_allclose(rows, expected, rtol=1e-6)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("where", LOOPS)
def test_lookups_in_loops_say_where_they_should_be(version, where):
    with control_flow(version), pytest.raises(NotImplementedError, match="before the loop"):
        trained(LOOPS[where], dynamic=True)


def test_a_loop_of_steps_trains():
    table = get_embedding_variable("table", 2, initializer=1.0)
    optimizer = v1.train.GradientDescentOptimizer(0.1)

    @tf.function
    def train():
        for step in tf.range(3):
            with tf.GradientTape() as tape:
                loss = tf.cond(step > 0, lambda: tf.reduce_sum(table.sparse_read([step, 7])), lambda: 0.0)  # noqa: B023
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    train()
    np.testing.assert_allclose(table.sparse_read([1, 2, 7])[:, 0], [0.9, 0.9, 0.8], rtol=1e-6)


def test_a_meta_graph_has_the_variables_beside_a_table(tmp_path, caplog):
    with tf.Graph().as_default():
        get_embedding_variable("table", 2)
        v1.get_variable("dense", [3], use_resource=True)
        with caplog.at_level(logging.WARNING, logger="tensorflow"):
            exported = v1.train.export_meta_graph()
    assert not caplog.records
    with tf.Graph().as_default():
        v1.train.import_meta_graph(exported)
        assert [v.op.name for v in v1.global_variables()] == ["dense"]
        assert not tf.compat.v1.get_collection("lockstep/dynamic_tables")
