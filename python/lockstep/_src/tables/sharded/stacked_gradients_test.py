"""Tests of gradients that are read inside the gradient of a stack (`tf/graph/stacked_gradients_pass.cc`)."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep.testing import call_workers

tf1 = tf.compat.v1
ROWS, BATCH, DIM = (50, 40, 30, 20), 6, 3


def ids(rank, feature, list_size):
    shape = (BATCH, list_size) if list_size else (BATCH,)
    return np.random.default_rng([rank, feature]).integers(0, ROWS[feature], shape)


def model(ranks, list_size, dtype):
    """Returns the training operation, the stack of vectors that it trains, and the tables."""
    tables = [
        tf1.get_variable(
            f"t{i}",
            initializer=tf.constant(np.random.default_rng(i).normal(size=(rows, DIM)).astype(np.float32), dtype),
        )
        for i, rows in enumerate(ROWS)
    ]
    losses, stacks = [], []
    for rank in ranks:
        found = [tf.nn.embedding_lookup(table, ids(rank, i, list_size)) for i, table in enumerate(tables)]
        # A part of the stack is no lookup, and one lookup is there twice.
        stacks.append(tf.stack([found[0], tf.zeros_like(found[0]), *found[1:], found[3] * 2.0], axis=1))
        weights = tf.constant(np.random.default_rng(7).normal(size=stacks[-1].shape), dtype)
        losses.append(tf.reduce_sum(tf.square(stacks[-1]) * weights))
    train = tf1.train.GradientDescentOptimizer(0.05).minimize(tf.add_n(losses) / len(losses))
    return train, stacks[0], tables


def executed(session, fetches):
    """Returns the nodes that a run executes."""
    metadata = tf1.RunMetadata()
    session.run(fetches, options=tf1.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    return [node for graph in metadata.partition_graphs for node in graph.node]


def trained(ranks, list_size, dtype):
    """Returns the tables after two steps, and the operations that ran in the second."""
    train, stack, tables = model(ranks, list_size, dtype)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        # The second run has other nodes. A kernel of the first would read other places.
        session.run([train, stack])
        nodes = executed(session, train)
        return session.run([tf.cast(table, tf.float32) for table in tables]), nodes


def compare():
    context.ensure_initialized()
    for list_size, dtype in ((0, tf.float32), (2, tf.float32), (0, tf.bfloat16), (0, tf.float64)):
        with tf.Graph().as_default():
            expected, _ = trained(range(context.world_size), list_size, dtype)
        with tf.Graph().as_default(), scope(), embedding_scope():
            got, nodes = trained([context.rank], list_size, dtype)
        tolerance = 1e-2 if dtype == tf.bfloat16 else 1e-6
        for mine, wanted in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=tolerance, atol=tolerance)
        gradients = [node for node in nodes if node.op == "LockstepCombineGradient"]
        assert [list(node.attr["slices"].list.i) for node in gradients] == [[0, 2, 3, -1]], gradients
        assert any(node.op == "Unpack" for node in nodes), "the lookup that is there twice needs a sum"


def test_gradients_in_stacks_train_as_in_plain_tensorflow():
    call_workers(compare, 2, timeout_s=120)


def without_unpack():
    context.ensure_initialized()
    with tf.Graph().as_default(), scope(), embedding_scope():
        tables = [tf1.get_variable(f"t{i}", [rows, DIM]) for i, rows in enumerate(ROWS)]
        stack = tf.stack([tf.nn.embedding_lookup(table, ids(0, i, 0)) for i, table in enumerate(tables)], axis=1)
        train = tf1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(stack)))
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            assert "Unpack" not in {node.op for node in executed(session, train)}


def test_slices_that_nobody_reads_are_not_copied():
    call_workers(without_unpack, 2, timeout_s=60)
