"""Tests that workers that share a dynamic table compute the same as one worker with the batches of all."""

from __future__ import annotations

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables import dynamic
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

v1 = tf.compat.v1
HAS_KERAS_3 = getattr(tf.keras, "__version__", "2").startswith("3")
DIM, STEPS = 3, 4


def keys_of(step, rank):
    """Returns [6, 4] keys, few enough for duplicates; -1 stands for a missing key."""
    random = np.random.RandomState(100 * step + rank)
    keys = random.randint(0, 25, [6, 4]) * 10**15
    keys[random.rand(6, 4) < 0.3] = -1
    keys[:, 0] = np.abs(keys[:, 0])
    return keys


# Strings in place of the 25 keys: empty, with any bytes, with a common beginning, and much longer than the others.
WORDS = [
    b"",
    b"\0",
    b"\0\0",
    "größer".encode(),
    "日本語".encode(),
    b"\xff\xfe",
    b"x" * 5000,
    b"x" * 4999 + b"y",
    b"y" * 70000,
]
WORDS += [f"word {n}".encode() for n in range(25 - len(WORDS))]


def words(keys):
    return tf.gather(tf.constant(WORDS), keys // 10**15)


def sparse(keys):
    places = tf.where(keys >= 0)
    return tf.SparseTensor(places, tf.gather_nd(keys, places), tf.shape(keys, tf.int64))


def sparse_words(keys):
    of = sparse(keys)
    return of.with_values(words(of.values))


def weights(keys):
    of = sparse(keys)
    return of.with_values(tf.cast(of.values % 7 + 1, tf.float32))


LOOKUPS = {
    "one key": lambda t, k: tf.nn.embedding_lookup(t, k[:, 0]),
    "sum": lambda t, k: tf.nn.embedding_lookup_sparse(t, sparse(k), None, combiner="sum"),
    "mean": lambda t, k: tf.nn.embedding_lookup_sparse(t, sparse(k), None, combiner="mean"),
    "sqrtn": lambda t, k: tf.nn.embedding_lookup_sparse(t, sparse(k), None, combiner="sqrtn"),
    "weights": lambda t, k: tf.nn.embedding_lookup_sparse(t, sparse(k), weights(k), combiner="mean"),
    "a branch": lambda t, k: tf.cond(
        tf.size(k) > 0, lambda: tf.nn.embedding_lookup(t, k[:, 0]), lambda: tf.zeros([tf.shape(k)[0], DIM])
    ),
    "a word": lambda t, k: tf.nn.embedding_lookup(t, words(k[:, :1])),
    "words": lambda t, k: tf.nn.embedding_lookup_sparse(t, sparse_words(k), None, combiner="sum"),
}
OPTIONS = {
    "plain": dynamic.EmbeddingVariableOption(),
    "admission": dynamic.EmbeddingVariableOption(filter_option=dynamic.CounterFilter(4), record_frequency=True),
    "eviction": dynamic.EmbeddingVariableOption(evict_option=dynamic.GlobalStepEvict(1), record_frequency=True),
}
OPTIMIZERS = {"Adagrad": v1.train.AdagradOptimizer, "Adadelta": v1.train.AdadeltaOptimizer}


def train(ranks):
    """Returns what this process's part of each table holds after steps on the batches of `ranks`, and its lookups."""
    with tf.Graph().as_default(), embedding_scope():
        v1.set_random_seed(3)
        fed = [v1.placeholder(tf.int64, [6, 4]) for _ in ranks]
        # All keys form one batch, because a lookup counts all its keys before it adds any.
        keys = tf.concat(fed, 0)
        tables, losses, read = {}, [], {}
        for optimizer in OPTIMIZERS:
            for option in OPTIONS:
                for name, look_up in LOOKUPS.items():
                    key = f"{optimizer}/{option}/{name}"
                    tables[key] = dynamic.get_embedding_variable(
                        key.replace(" ", "_"),
                        DIM,
                        key_dtype=tf.string if "word" in name else tf.int64,
                        initializer=v1.random_normal_initializer(),
                        ev_option=OPTIONS[option],
                    )
                    losses.append(tf.reduce_mean(tf.sin(look_up(tables[key], keys))))
                    with dynamic.evaluating():
                        read[key] = tables[key].sparse_read(WORDS if "word" in name else np.arange(25) * 10**15)
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


def train_words():
    """Returns a worker's words, [6] per step; what its part of a table holds afterwards; the exchanges of a step."""
    drawn = np.random.RandomState(context.rank).randint(0, len(WORDS), [STEPS, 6])
    with tf.Graph().as_default(), embedding_scope():
        option = dynamic.EmbeddingVariableOption(filter_option=dynamic.CounterFilter(2), record_frequency=True)
        tables = [
            dynamic.get_embedding_variable(
                n, DIM, key_dtype=t, initializer=v1.ones_initializer(), ev_option=option if n == "words" else None
            )
            for n, t in (("words", tf.string), ("others", tf.string), ("numbers", tf.int64))
        ]
        fed = v1.placeholder(tf.int64, [2, 3])
        keys = [words(fed * 10**15), words(fed * 10**15), fed]
        loss = tf.add_n([tf.reduce_sum(tf.nn.embedding_lookup(t, k)) for t, k in zip(tables, keys, strict=True)])
        step = v1.train.GradientDescentOptimizer(0.5).minimize(loss)
        with pytest.raises(TypeError, match="table 'words': keys are int64, wanted string"):
            tf.nn.embedding_lookup(tables[0], fed)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            options, metadata = v1.RunOptions(output_partition_graphs=True), v1.RunMetadata()
            for batch in drawn:
                session.run([step, loss], {fed: batch.reshape(2, 3)}, options, metadata)
            exchanges = [n.op for graph in metadata.partition_graphs for n in graph.node if n.op.startswith("Lockstep")]
            return drawn, session.run(tables[0].export()), exchanges


def train_clipped(ranks):
    """Returns the norms of a lookup's gradient in a branch, taken and not taken, and rows after clipping by it."""
    with tf.Graph().as_default(), scope(), v1.Session() as session:
        table = dynamic.get_embedding_variable("clipped", 2, initializer=v1.ones_initializer())
        taken = v1.placeholder(tf.bool, [])
        keys = tf.constant([[1, 1, 2, 5], [1, 2, 2, 7]], tf.int64)
        keys = tf.stack([keys[rank] for rank in ranks])
        loss = tf.cond(taken, lambda: tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, keys))), lambda: 0.0)
        (gradient,) = tf.gradients(loss, [table])
        norm = tf.linalg.global_norm([gradient])
        step = v1.train.GradientDescentOptimizer(1.0).apply_gradients([(tf.clip_by_norm(gradient, 0.1), table)])
        session.run(v1.global_variables_initializer())
        norms = [float(session.run([norm, step], {taken: is_taken})[0]) for is_taken in (True, False)]
        exported = session.run(table.export())
        return norms, dict(zip(exported.keys.tolist(), exported.values.tolist(), strict=True))


def on_worker(version):
    if version == 1:
        v1.disable_v2_behavior()
    context.ensure_initialized()
    clipped = train_clipped([context.rank]) if context.world_size == 2 else None
    return train([context.rank]), train_words(), clipped


# One host, also with the behavior of TensorFlow 1, and two hosts, whose workers exchange inside each host first.
JOBS = [("aa", 2), pytest.param("aa", 1, marks=pytest.mark.long), pytest.param("aab", 2, marks=pytest.mark.newest_only)]


@functools.cache
def on_workers(hosts, version):
    variables = {"HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP": "1"}
    return call_workers(on_worker, len(hosts), version, environment=variables, hosts=hosts, timeout_s=240)


@functools.cache
def alone(workers):
    return train(range(workers))


@pytest.mark.parametrize(("hosts", "version"), JOBS)
@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_workers_train_what_one_does(optimizer, option, lookup, hosts, version):
    key = f"{optimizer}/{option}/{lookup}"
    expected, expected_read = alone(len(hosts))[key]
    parts = [trained[key] for trained, *_ in on_workers(hosts, version)]
    keys = np.concatenate([exported.keys for exported, _ in parts])
    assert len(np.unique(keys)) == len(keys), "a key has two owners"
    assert all(len(exported.keys) > 0 for exported, _ in parts)
    order, expected_order = np.argsort(keys), np.argsort(expected.keys)
    np.testing.assert_array_equal(keys[order], expected.keys[expected_order])
    for field in ("values", "versions", "freqs"):
        got = np.concatenate([getattr(exported, field) for exported, _ in parts])[order]
        np.testing.assert_allclose(got, getattr(expected, field)[expected_order], rtol=1e-5, atol=1e-6)
    for _, read in parts:
        np.testing.assert_allclose(read, expected_read, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("hosts", "version"), JOBS)
def test_words_of_workers_are_counted_and_trained_as_in_a_dict(hosts, version):
    workers = len(hosts)
    drawn, parts, exchanges = zip(*(of_words for _, of_words, *_ in on_workers(hosts, version)), strict=True)
    seen, rows = collections.Counter(), {}
    for step in range(STEPS):
        times = collections.Counter(WORDS[i] for worker in drawn for i in worker[step])
        seen.update(times)
        for word, count in times.items():
            if seen[word] >= 2:
                # The gradient is the mean over the workers of the sums.
                rows[word] = rows.get(word, 1.0) - 0.5 * count / workers
    held = {}
    for part in parts:
        own = dict(zip(part.keys, zip(part.values, part.freqs, strict=True), strict=True))
        assert not held.keys() & own.keys()
        held.update(own)
    assert held.keys() == rows.keys()
    for word, (row, frequency) in held.items():
        np.testing.assert_allclose(row, rows[word], rtol=1e-6)
        assert frequency == seen[word], word
    for of_worker in exchanges:
        # There are two tables of words and one of numbers: words have an exchange of their own, rows share one. With
        # several hosts, exchanges inside each host come first.
        for op in ("LockstepRouteStrings", "LockstepRoute", "LockstepCombine", "LockstepCombineGradient"):
            assert of_worker.count(op) == len(set(hosts)), of_worker


@pytest.mark.parametrize(("workers", "version"), [(1, 2), (2, 2), (2, 1)])
def test_norms_of_lookups_in_a_branch_are_those_of_the_whole_gradient(workers, version):
    results = [train_clipped([0, 1])] if workers == 1 else [clipped for *_, clipped in on_workers("aa", version)]
    # With 8 keys, the gradient of an element of a lookup is 2 / 16, in both columns.
    times = {1: 3, 2: 3, 5: 1, 7: 1}
    norm = np.sqrt(sum(2 * (n / 8) ** 2 for n in times.values()))
    rows = {}
    for norms, held in results:
        np.testing.assert_allclose(norms, [norm, 0.0], rtol=1e-6)
        rows.update(held)
    assert rows.keys() == times.keys()
    for key, row in rows.items():
        np.testing.assert_allclose(row, 1 - 0.1 * times[key] / 8 / norm, rtol=1e-6)


def train_with_an_optimizer_made_before_its_table():
    with tf.Graph().as_default(), scope():
        optimizer = v1.train.AdagradOptimizer(0.1)
        table = dynamic.get_embedding_variable("late", DIM, initializer=1.0)
        rows = tf.nn.embedding_lookup(table, tf.constant([1, 2, 3], tf.int64))
        train = optimizer.minimize(tf.reduce_sum(rows))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train)
            return session.run(table.export().values)


def test_an_optimizer_made_before_the_first_table_of_a_scope_trains_it():
    parts = call_workers(train_with_an_optimizer_made_before_its_table, 2, timeout_s=120)
    rows = np.concatenate(parts)
    assert rows.shape == (3, DIM) and (rows < 1.0).all()
