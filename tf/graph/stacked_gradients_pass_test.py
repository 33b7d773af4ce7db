"""Tests of gradients that are read inside the gradient of a stack, where LockstepCombineGradient takes slices."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables import dynamic
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

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
        # A part of the stack is not a lookup, and one lookup is there twice.
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


TABLE_ROWS = 20


def stacks(lookup, rank):
    """Yields stacks on every axis, and on one that is counted from the end; `rank` is the rank of a lookup's rows."""
    for axis in [*range(rank + 1), -rank]:
        yield tf.stack([lookup(), lookup(), lookup() * 2.0], axis=axis)


def other_uses(lookup):
    """Yields results of other operations whose gradients are slices or stacks."""
    yield tf.add_n(tf.unstack(tf.square(lookup()), axis=0))
    yield tf.concat([lookup(), lookup()], axis=0)
    yield tf.gather(lookup(), [0, 2, 0])
    yield tf.gather_nd(lookup(), [[0], [1]])
    yield tf.stack([tf.gather(lookup(), [0, 1]), tf.gather(lookup(), [1, 0])], axis=-1)


def trained_rows(ranks, shapes, row, make_table):
    """Returns the rows of a table for each shape of ids, after a step of training on all uses of lookups."""
    losses, tables = [], []
    for number, shape in enumerate(shapes):
        table = make_table(f"t{number}", row)
        tables.append(table)
        for rank in ranks:
            random = np.random.default_rng([number, rank])

            def lookup(table=table, shape=shape, random=random):
                return tf.nn.embedding_lookup(table, tf.constant(random.integers(0, TABLE_ROWS, shape)))

            for value in [*stacks(lookup, len(shape) + len(row)), *other_uses(lookup)]:
                weights = tf.constant(random.normal(size=value.shape).astype(np.float32))
                losses.append(tf.reduce_sum(tf.square(value + 1.0) * weights))
    train = tf1.train.GradientDescentOptimizer(0.01).minimize(tf.add_n(losses) / len(ranks))
    every = [tf.nn.embedding_lookup(table, tf.range(TABLE_ROWS, dtype=tf.int64)) for table in tables]
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(train)
        return session.run(every)


def plain_table(name, row):
    values = np.random.default_rng(list(name.encode())).normal(size=(TABLE_ROWS, *row))
    return tf1.get_variable(name, initializer=values.astype(np.float32))


def constant_table(name, row):
    return tf1.get_variable(name, initializer=np.full((TABLE_ROWS, *row), 0.5, np.float32))


def dynamic_table(name, row):
    return dynamic.get_embedding_variable(name, row[0], initializer=0.5)


def compare_shapes_and_axes():
    context.ensure_initialized()
    for shapes, row, plain, table in (
        (((), (4,), (4, 3), (3, 4, 3)), (3,), plain_table, plain_table),
        (((),), (3, 2), plain_table, plain_table),
        (((), (4,)), (3,), constant_table, dynamic_table),
    ):
        with tf.Graph().as_default():
            wanted = trained_rows(range(context.world_size), shapes, row, plain)
        with tf.Graph().as_default(), scope(), embedding_scope():
            got = trained_rows([context.rank], shapes, row, table)
        for shape, mine, right in zip(shapes, got, wanted, strict=True):
            message = f"{table.__name__} with rows of shape {row}, ids of shape {shape}"
            np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5, err_msg=message)


def test_lookups_of_ids_of_any_shape_train_as_in_plain_tensorflow():
    """Scalar ids as well: of their rows [D], a stack on axis 1 makes [D, F]."""
    call_workers(compare_shapes_and_axes, 2, timeout_s=100)
