"""Pooled lookups in jobs: fused, not fused, and as plain TensorFlow on one process with the batches of all workers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables.dynamic import get_embedding_variable
from lockstep._src.tables.features.group_lookup import group_embedding_lookup_sparse
from lockstep.testing import call_workers

tf1 = tf.compat.v1
ROWS, DIM, EXAMPLES, STEPS = 30, 5, 7, 3
OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01),
}


def _cases():
    """Yields cases in which each kind of table, combiner and form meets several optimizers."""
    forms = itertools.product(
        ("static", "dynamic"), ("sum", "mean", "sqrtn"), (False, True), ("sparse", "ragged", "safe", "group")
    )
    for (kind, combiner, weighted, form), optimizer in zip(forms, itertools.cycle([*OPTIMIZERS, "adagrad"])):
        # TensorFlow's safe lookup gives id 0 a gradient of zero for examples without ids. For a dynamic table this is a
        # key of its own, which fused lookups leave alone: with gradient descent and Adagrad this makes no difference.
        is_filled = kind == "dynamic" and form == "safe"
        yield kind, combiner, weighted, form, "adagrad" if is_filled else optimizer


CASES = list(_cases())


def batch(step: int, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns lengths [EXAMPLES], ids and weights of a worker's batch; some examples have no ids, the last one has."""
    random = np.random.default_rng([step, rank])
    lengths = random.integers(0, 6, EXAMPLES)
    lengths[random.integers(EXAMPLES - 1)], lengths[-1] = 0, 3
    count = lengths.sum()
    return lengths, random.integers(0, ROWS, count) // random.integers(1, 4), random.uniform(0.5, 2, count)


def values() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(ROWS, DIM)).astype(np.float32)


def pooled(table, form: str, combiner: str, weighted: bool, lengths, ids, weights) -> tf.Tensor:
    ids = tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)
    weights = ids.with_values(weights) if weighted else None
    if form == "group":
        return group_embedding_lookup_sparse([table], [ids], [combiner], None if weights is None else [weights])[0]
    if form == "ragged":
        return tf.nn.embedding_lookup_sparse(table, ids, weights, combiner=combiner)
    ids, weights = ids.to_sparse(), None if weights is None else weights.to_sparse()
    if form == "safe":
        return tf.nn.safe_embedding_lookup_sparse(table, ids, weights, combiner=combiner)
    return tf1.nn.embedding_lookup_sparse(table, ids, weights, combiner=combiner)


def train(make_table, optimizer: str, form: str, combiner: str, weighted: bool, ranks, read):
    """Trains on the batches of `ranks`, in one step each; returns the rows, [ROWS, DIM]."""
    table = make_table()
    fed = [
        (
            tf1.placeholder(tf.int64, [None]),
            tf1.placeholder(tf.int64, [None]),
            tf1.placeholder(tf.float32, [None]),
        )
        for _ in ranks
    ]
    target = tf.constant(np.random.default_rng(6).normal(size=(EXAMPLES, DIM)), tf.float32)
    loss = tf.add_n(
        [tf.reduce_mean(tf.square(pooled(table, form, combiner, weighted, *one) - target)) for one in fed]
    ) / len(ranks)
    train_op = OPTIMIZERS[optimizer]().minimize(loss)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for step in range(STEPS):
            feed = {}
            for rank, places in zip(ranks, fed, strict=True):
                feed.update(zip(places, batch(step, rank), strict=True))
            session.run([loss, train_op], feed)
        return session.run(read(table))


def plain(case, workers):
    """Returns the rows after training in plain TensorFlow, on all batches."""
    kind, combiner, weighted, form, optimizer = case
    form = "safe" if form == "safe" else "sparse"
    with tf.Graph().as_default():
        return train(
            lambda: tf1.get_variable("table", initializer=values()),
            optimizer,
            form,
            combiner,
            weighted,
            range(workers),
            lambda table: table.read_value(),
        )


def of_job(case, fused):
    """Returns the rows after training in the job."""
    kind, combiner, weighted, form, optimizer = case

    def make():
        with embedding_scope():
            if kind == "static":
                return tf1.get_variable("table", initializer=values())
            return get_embedding_variable("table", DIM, initializer=values())

    def read(table):
        return tf.nn.embedding_lookup(table, tf.range(ROWS, dtype=tf.int64))

    with tf.Graph().as_default(), scope(fused_lookups=fused):
        return train(make, optimizer, form, combiner, weighted, [context.rank], read)


def compare(every: int):
    context.ensure_initialized()
    for case in CASES[::every]:
        fused, apart = of_job(case, fused=True), of_job(case, fused=False)
        np.testing.assert_allclose(fused, apart, rtol=1e-5, atol=1e-6, err_msg=f"{case}, fused and not")
        wanted = plain(case, context.world_size)
        np.testing.assert_allclose(fused, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{case}, plain TensorFlow")


@pytest.mark.parametrize(("workers", "every"), [(1, 7), pytest.param(2, 1, marks=pytest.mark.newest_only), (3, 5)])
def test_training_equals_unfused_and_plain_tensorflow(workers, every):
    call_workers(compare, workers, every, timeout_s=400)
