"""Jobs whose tables are at different places train like plain TensorFlow, and read each other's checkpoints."""

from __future__ import annotations

import json
import logging
import os

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables.sharded import lookup_steps
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

tf1 = tf.compat.v1
# A table has at least the rows that the scope's rules ask for.
ROWS, DIM, IDS, STEPS = {"user": 300, "item": 17, "tag": 5}, 3, 12, 4
PLACEMENTS = (
    "rows",
    "rows:7",
    "replicated",
    "worker",
    "auto",
    {"user": "worker:0", "item": "replicated", "tag": "worker"},
    {"user": {"placement": "auto", "ids": 3}, "*": "rows:2"},
)


def values(name):
    return np.random.default_rng(ROWS[name]).normal(size=(ROWS[name], DIM)).astype(np.float32)


def batch(step, rank, name):
    return np.random.default_rng([step, rank, ROWS[name]]).integers(0, ROWS[name], IDS)


def model(ranks, optimizer):
    """Returns the placeholders of each rank and table, the training operation and the tables."""
    tables = {name: tf1.get_variable(name, initializer=values(name)) for name in ROWS}
    fed = {(rank, name): tf1.placeholder(tf.int64, [IDS]) for rank in ranks for name in ROWS}
    losses = []
    for rank in ranks:
        rows = [tf.nn.embedding_lookup(table, fed[rank, name]) for name, table in tables.items()]
        # Pooled, and as a whole: its gradient is dense.
        splits = tf.constant([0, 5, 5, IDS], tf.int64)
        ragged = tf.RaggedTensor.from_row_splits(fed[rank, "user"], splits)
        rows.append(tf.nn.embedding_lookup_sparse(tables["user"], ragged, None, combiner="mean"))
        losses.append(tf.add_n([tf.reduce_sum(tf.square(part - 0.5)) for part in rows]))
    loss = tf.add_n(losses) / len(losses) + tf.reduce_sum(tf.square(tables["tag"]))
    return fed, optimizer.minimize(loss, tf1.train.get_or_create_global_step()), tables


def feed(fed, step):
    return {place: batch(step, rank, name) for (rank, name), place in fed.items()}


def plain(workers):
    """Returns the tables' rows after training in plain TensorFlow, on the batches of all workers."""
    with tf.Graph().as_default():
        fed, train, tables = model(range(workers), tf1.train.AdagradOptimizer(0.1))
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for step in range(STEPS):
                session.run(train, feed(fed, step))
            return session.run(tables)


def steps_of_job(placement, folder, begin, end):
    """Trains with a placement and saves; returns the tables' rows, and the slots of Adagrad in the checkpoint."""
    prefix = os.path.join(folder, "model")
    with tf.Graph().as_default(), scope(placement=placement):
        with embedding_scope():
            fed, train, tables = model([context.rank], tf1.train.AdagradOptimizer(0.1))
        saver = tf1.train.Saver()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            if begin:
                saver.restore(session, prefix)
            for step in range(begin, end):
                session.run(train, feed(fed, step))
            saver.save(session, prefix)
            read = {name: table.read_value() for name, table in tables.items()}
            return session.run(read)


def compare(folder):
    context.ensure_initialized()
    wanted = plain(context.world_size)
    for placement in PLACEMENTS:
        found = steps_of_job(placement, folder, 0, STEPS)
        saved = tf.train.load_checkpoint(os.path.join(folder, "model"))
        for name, rows in wanted.items():
            np.testing.assert_allclose(found[name], rows, rtol=1e-5, atol=1e-6, err_msg=f"{placement}: {name}")
            np.testing.assert_array_equal(saved.get_tensor(name), found[name])
            assert saved.get_tensor(f"{name}/Adagrad").shape == rows.shape
        lockstep.barrier(name="read")
    # Each run continues from the checkpoint of the one before, which had another placement.
    for step, placement in zip(range(STEPS), PLACEMENTS[3:], strict=True):
        found = steps_of_job(placement, folder, step, step + 1)
    for name, rows in wanted.items():
        np.testing.assert_allclose(found[name], rows, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("workers", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 3))])
def test_training_and_checkpoints_are_the_same_for_all_placements(workers, tmp_path):
    call_workers(compare, workers, str(tmp_path), timeout_s=300)


def balance(folder):
    """Puts all work on worker 0, and trains again with the plan that is proposed."""
    context.ensure_initialized()
    texts = []
    logging.getLogger("lockstep").addHandler(handler := logging.Handler())
    handler.emit = lambda record: texts.append(record.getMessage())
    imbalances, path = [], os.path.join(folder, "plan.json")
    for placement in ({"user": "worker:0", "item": "worker:0", "tag": "worker:0"}, path):
        with tf.Graph().as_default(), scope(placement=placement):
            with embedding_scope():
                fed, train, tables = model([context.rank], tf1.train.AdagradOptimizer(0.1))
            begin = lockstep.stats()
            expected = lockstep.plan(file=None)
            assert expected.steps == 0 or placement == path
            stats = lockstep.train.StatsHook(folder, every_n_steps=2)
            with tf1.train.MonitoredTrainingSession(hooks=[stats]) as session:
                for step in range(STEPS):
                    session.run(train, feed(fed, step))
            if context.rank == 0 and placement != path:
                assert any("Proposal" in text and "user: worker:0 -> rows" in text for text in texts), texts
            made = lockstep.plan(begin, file=None)
            assert made.steps == STEPS
            user = next(table for table in made.tables if table.name == "user")
            assert list(user.ids) == [2.0 * IDS] * context.world_size, "two lookups"
            held = [sum(t.shard.local_rows for t in tables.values() if hasattr(t, "shard"))]
            assert made.workers[context.rank].rows >= held[0]
            imbalances.append(made.imbalance)
            made.save(path)
        lockstep.barrier(name="saved")
    assert imbalances[0] > 0.2 > imbalances[1], imbalances
    if context.rank == 0:
        with open(path, encoding="utf-8") as file:
            assert json.load(file)["tables"]["user"]["placement"] == "rows"
    else:
        assert not texts, "worker 0 warns for all"


def test_an_imbalance_is_told_and_the_proposal_mends_it(tmp_path):
    call_workers(balance, 2, str(tmp_path), timeout_s=120)


def disagree():
    context.ensure_initialized()
    with tf.Graph().as_default(), scope(placement=f"worker:{context.rank}"):
        with embedding_scope():
            table = tf1.get_variable("user", [10, 3])
        rows = tf.nn.embedding_lookup(table, tf.constant([1, 2]))
        with tf1.Session() as session:
            session.run(table.initializer)
            with pytest.raises(tf.errors.OpError, match="the ranks run different graphs"):
                session.run(rows)
    # Operations outside of graphs and functions have no common check.
    with pytest.raises(tf.errors.OpError, match=r"LockstepRoute placed \w{16}"):
        lookup_steps.route(tf.constant([1, 2]), table.shard, "user")


def test_workers_that_place_a_table_differently_get_an_error():
    call_workers(disagree, 2, timeout_s=60)


def keras_model(placement):
    """Returns a compiled model of Keras 3 whose tables are placed, with the same initial values everywhere."""
    keras = tf.keras
    ids = {name: keras.Input([], dtype="int64", name=f"{name}_id") for name in ROWS}
    with embedding_scope(placement=placement):
        layers = {name: keras.layers.Embedding(ROWS[name], DIM, name=name) for name in ROWS}
        rows = [layer(ids[name]) for name, layer in layers.items()]
    score = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Concatenate()(rows))
    model = keras.Model(list(ids.values()), score)
    for name, layer in layers.items():
        layer.embeddings.assign(values(name))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def keras_rows(rank):
    random = np.random.default_rng(rank)
    features = {f"{name}_id": random.integers(0, rows, 64) for name, rows in ROWS.items()}
    return features, random.normal(size=(64, 1)).astype(np.float32)


def fit_keras(folder):
    context.ensure_initialized()
    path = os.path.join(folder, "model.weights.h5")
    fitted = []
    for placement in ("rows", {"user": "worker:1", "*user*": "worker:1", "*": "auto"}, "worker"):
        with scope():
            model = keras_model(placement)
            if fitted:
                model.load_weights(path)
            model.fit(*keras_rows(context.rank), batch_size=16, epochs=1, shuffle=False, verbose=0)
            fitted.append([weight.numpy() for weight in model.weights])
            if placement == "rows":
                # The next models begin from here.
                model.save_weights(path)
    for one, other in zip(fitted[1], fitted[2], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    return lockstep.plan(file=None).tables


@pytest.mark.skipif(
    not getattr(tf.keras, "__version__", "2").startswith("3"), reason="TensorFlow before 2.16 has no Keras 3"
)
def test_models_of_keras_train_alike_with_all_placements(tmp_path):
    tables = call_workers(fit_keras, 2, str(tmp_path), timeout_s=300)[0]
    assert {table.name.split("/")[-2]: table.placement[:6] for table in tables}["user"] == "worker"
