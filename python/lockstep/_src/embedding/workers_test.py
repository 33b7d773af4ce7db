"""Workers that share a dynamic table out compute what one does with the batches of all."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src import embedding
from lockstep._src.context import context
from lockstep._src.scope import embedding_scope
from lockstep.testing import call_workers

v1 = tf.compat.v1
DIM, STEPS = 3, 4


def keys_of(step, rank):
    """[6, 4] keys, few enough for duplicates; -1 where there is none."""
    random = np.random.RandomState(100 * step + rank)
    keys = random.randint(0, 25, [6, 4]) * 10**15
    keys[random.rand(6, 4) < 0.3] = -1
    keys[:, 0] = np.abs(keys[:, 0])
    return keys


def sparse(keys):
    places = tf.where(keys >= 0)
    return tf.SparseTensor(places, tf.gather_nd(keys, places), tf.shape(keys, tf.int64))


def weights(keys):
    of = sparse(keys)
    return of.with_values(tf.cast(of.values % 7 + 1, tf.float32))


LOOKUPS = {
    "one key": lambda t, k: tf.nn.embedding_lookup(t, k[:, 0]),
    "sum": lambda t, k: tf.nn.embedding_lookup_sparse(t, sparse(k), None, combiner="sum"),
    "mean": lambda t, k: tf.nn.embedding_lookup_sparse(t, sparse(k), None, combiner="mean"),
    "sqrtn": lambda t, k: tf.nn.embedding_lookup_sparse(t, sparse(k), None, combiner="sqrtn"),
    "weights": lambda t, k: tf.nn.embedding_lookup_sparse(t, sparse(k), weights(k), combiner="mean"),
}
OPTIONS = {
    "plain": embedding.EmbeddingVariableOption(),
    "admission": embedding.EmbeddingVariableOption(filter_option=embedding.CounterFilter(4), record_frequency=True),
    "eviction": embedding.EmbeddingVariableOption(evict_option=embedding.GlobalStepEvict(1), record_frequency=True),
}
OPTIMIZERS = {"Adagrad": v1.train.AdagradOptimizer, "Adadelta": v1.train.AdadeltaOptimizer}


def train(ranks):
    """What this process's part of each table holds after some steps on the batches of `ranks`, and what it looked up."""
    with tf.Graph().as_default(), embedding_scope():
        v1.set_random_seed(3)
        fed = [v1.placeholder(tf.int64, [6, 4]) for _ in ranks]
        # One batch: keys of a lookup are counted as a whole before any is taken in.
        keys = tf.concat(fed, 0)
        tables, losses, read = {}, [], {}
        for optimizer in OPTIMIZERS:
            for option in OPTIONS:
                for name, look_up in LOOKUPS.items():
                    key = f"{optimizer}/{option}/{name}"
                    tables[key] = embedding.get_embedding_variable(
                        key.replace(" ", "_"),
                        DIM,
                        initializer=v1.random_normal_initializer(),
                        ev_option=OPTIONS[option],
                    )
                    losses.append(tf.reduce_mean(tf.sin(look_up(tables[key], keys))))
                    with embedding.evaluating():
                        read[key] = tables[key].sparse_read(np.arange(25) * 10**15)
        step = v1.train.get_or_create_global_step()
        variables = list(tables.values())
        half = len(variables) // 2
        loss = tf.add_n(losses)
        ops = []
        for made, part in zip(OPTIMIZERS.values(), (variables[:half], variables[half:]), strict=True):
            ops.append(made(0.3).minimize(loss, var_list=part))
        with tf.control_dependencies(ops):
            ops = [step.assign_add(1).op]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for i in range(STEPS):
                session.run(ops, {place: keys_of(i, rank) for place, rank in zip(fed, ranks, strict=True)})
            return session.run({key: (table.export(), read[key]) for key, table in tables.items()})


def on_worker():
    context.ensure_initialized()
    return train([context.rank])


@functools.cache
def on_workers(workers):
    return call_workers(on_worker, workers, timeout_s=240)


@functools.cache
def alone():
    return train([0, 1])


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_workers_train_what_one_does(optimizer, option, lookup):
    key = f"{optimizer}/{option}/{lookup}"
    expected, expected_read = alone()[key]
    parts = [result[key] for result in on_workers(2)]
    keys = np.concatenate([exported.keys for exported, _ in parts])
    assert len(np.unique(keys)) == len(keys), "a key has two owners"
    assert all(len(exported.keys) > 0 for exported, _ in parts)
    order = np.argsort(keys)
    np.testing.assert_array_equal(keys[order], expected.keys)
    for field in ("values", "versions", "freqs"):
        got = np.concatenate([getattr(exported, field) for exported, _ in parts])[order]
        np.testing.assert_allclose(got, getattr(expected, field), rtol=1e-5, atol=1e-6)
    for _, read in parts:
        np.testing.assert_allclose(read, expected_read, rtol=1e-5, atol=1e-6)
