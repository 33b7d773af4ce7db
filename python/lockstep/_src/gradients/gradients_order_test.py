"""Tests of the order in which a training step exchanges its gradients, and that it does so in the backward pass."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives.collectives_order_test import chain_of
from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

tf1 = tf.compat.v1

ROWS, DIM, BATCH = 64, 16, 4
WAIT_S = 15

# Layers of about the same size, so that each becomes a bucket, with 1, 2 and 3 variables.
LAYERS = {"first": ["kernel"], "second": ["kernel", "bias"], "third": ["kernel", "bias", "scale"]}


def table(name):
    return tf1.get_variable(name, [ROWS, DIM], initializer=tf.random_uniform_initializer(-0.1, 0.1, seed=3))


def looked_up(variable, shift):
    ids = np.arange(BATCH) * 5 + context.rank + shift
    return tf.nn.embedding_lookup(variable, tf.constant(ids % ROWS))


def layer(x, name):
    """Returns the output of a layer of `LAYERS`."""
    with tf1.variable_scope(name):
        variables = {
            v: tf1.get_variable(v, [DIM, DIM] if v == "kernel" else [DIM], initializer=tf.initializers.constant(0.1))
            for v in LAYERS[name]
        }
    return tf.tanh(x @ variables["kernel"] + variables.get("bias", 0.0)) * variables.get("scale", 1.0)


def kind(node):
    """Returns the kind of an exchange in the chain, such as "bucket 1"."""
    found = re.search(r"bucket_(\d+)$", node)
    if found:
        return f"bucket {int(found[1])}"
    last = node.rsplit("/", 1)[-1]
    return {
        "LockstepRoute": "route",
        "LockstepCombine": "combine",
        "LockstepCombineGradient": "gradient of combine",
        "LockstepGatherTable": "gather",
        "LockstepReduceTable": "gradient of gather",
    }.get(re.sub(r"_\d+$", "", last), last)


def chain_of_step(session, train_op):
    session.run(tf1.global_variables_initializer())
    return [kind(node) for node in chain_of(session, train_op)]


# Functions that run on workers.


def dense_alone():
    with tf.Graph().as_default(), scope(grad_nbuckets=3), tf1.Session() as session:
        x = tf.ones([BATCH, DIM]) * (context.rank + 1.0)
        for name in LAYERS:
            x = layer(x, name)
        train_op = tf1.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(x))
        return chain_of_step(session, train_op)


def with_tables():
    with tf.Graph().as_default(), scope(grad_nbuckets=3), tf1.Session() as session:
        with embedding_scope():
            x = looked_up(table("sharded"), 0)
        x += looked_up(table("replicated"), 1)
        for name in LAYERS:
            x = layer(x, name)
        train_op = tf1.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(x))
        return chain_of_step(session, train_op)


def with_a_table_that_is_read_whole():
    with tf.Graph().as_default(), scope(grad_nbuckets=3), tf1.Session() as session:
        with embedding_scope():
            x = tf.ones([BATCH, ROWS]) @ table("sharded")
        for name in LAYERS:
            x = layer(x, name)
        train_op = tf1.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(x))
        return chain_of_step(session, train_op)


def two_types():
    """Returns the names of variables in the order of their exchange; layers have two types in turn, a bucket each."""
    with tf.Graph().as_default(), scope(grad_nbuckets=2), tf1.Session() as session:
        x = tf.ones([BATCH, DIM], tf.float64)
        for name in ("a", "b", "c", "d"):
            dtype = tf.float32 if name in "bd" else tf.float64
            kernel = tf1.get_variable(f"kernel_{name}", [DIM, DIM], dtype, tf.initializers.constant(0.1))
            x = tf.tanh(tf.cast(x, dtype) @ kernel)
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        exchanged = {g.op.name: v.op.name for g, v in optimizer.compute_gradients(tf.reduce_mean(x))}
        session.run(tf1.global_variables_initializer())
        return [exchanged[node] for node in chain_of(session, list(exchanged))]


def overlapping(has_table):
    """Returns whether the first part's backward pass could wait for the exchange of the later layers' gradients.

    This needs no clock: if an exchange waited for the whole backward pass, the wait would never end.
    """
    arrived = {name: threading.Event() for name in LAYERS}
    seen = {}

    def await_exchange(gradient, names):
        names = names.decode().split(",")
        seen.update({name: arrived[name].wait(WAIT_S) for name in names})
        return gradient

    @tf.custom_gradient
    def holding(x, names):
        def gradient(dy):
            held = tf.numpy_function(await_exchange, [dy, names], dy.dtype)
            return tf.ensure_shape(held, dy.shape), None

        return tf.identity(x), gradient

    def note(name):
        def arrive(gradient):
            arrived[name].set()
            return gradient

        return arrive

    config = tf1.ConfigProto(inter_op_parallelism_threads=4)
    with tf.Graph().as_default(), scope(grad_nbuckets=3), tf1.Session(config=config) as session:
        if has_table:
            with embedding_scope():
                x = holding(looked_up(table("sharded"), 0), tf.constant("first,second,third"))
        else:
            x = tf.ones([BATCH, DIM])
        x = layer(x, "first")
        x = x if has_table else holding(x, tf.constant("second,third"))
        x = layer(layer(x, "second"), "third")
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        applied = []
        for gradient, variable in optimizer.compute_gradients(tf.reduce_mean(x)):
            name, _, part = variable.op.name.partition("/")
            if part == "kernel":
                gradient = tf.ensure_shape(tf.numpy_function(note(name), [gradient], gradient.dtype), variable.shape)
            applied.append((gradient, variable))
        session.run(tf1.global_variables_initializer())
        session.run(optimizer.apply_gradients(applied))
    return seen


# Tests.


@pytest.mark.parametrize(
    ("program", "chain"),
    [
        (dense_alone, ["bucket 0", "bucket 1", "bucket 2"]),
        (
            with_tables,
            # The ids of a replicated table do not wait for anything.
            [
                *("route", "replicated_indices", "combine"),
                *("bucket 0", "bucket 1", "bucket 2", "replicated_values", "gradient of combine"),
            ],
        ),
        (with_a_table_that_is_read_whole, ["gather", "bucket 0", "bucket 1", "bucket 2", "gradient of gather"]),
    ],
    ids=["dense_alone", "with_tables", "with_a_table_that_is_read_whole"],
)
def test_gradients_go_as_the_backward_pass_makes_them_and_tables_last(program, chain):
    assert call_workers(program, 2) == [chain] * 2


def test_buckets_of_several_types_go_as_the_backward_pass_makes_them():
    assert call_workers(two_types, 2) == [["kernel_d", "kernel_c", "kernel_b", "kernel_a"]] * 2


@pytest.mark.parametrize(("has_table", "awaited"), [(False, ["second", "third"]), (True, ["first", "second", "third"])])
def test_later_layers_are_exchanged_while_the_backward_pass_is_in_earlier_ones(has_table, awaited):
    assert call_workers(overlapping, 2, has_table) == [dict.fromkeys(awaited, True)] * 2
