"""Tests of SOK's functions inside the scopes of a strategy with COLLECTIVE_STRATEGY=sok, on two workers.

The workers' numbers equal the numbers of plain TensorFlow in one process with the batches of both.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import named_job
from lockstep._src.compat.deeprec.collective_strategy import CollectiveStrategy
from lockstep._src.compat.sok import job, lookups, rows
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.variables import make
from lockstep._src.engine.context import context
from lockstep._src.saving import saved_models
from lockstep.testing import call_workers

tf1 = tf.compat.v1
STEPS, EXAMPLES, IDS, ROWS, DIM, RATE = 4, 5, 3, 11, 2, 0.05
SOK = {"COLLECTIVE_STRATEGY": "sok"}
# Made by the strategy's scope, and by SOK in three ways.
TABLES = ("items", "rows", "last", "keys")


def batch_of(step, rank):
    """Returns ids [EXAMPLES, IDS] and labels [EXAMPLES] of a rank."""
    random = np.random.default_rng([step, rank])
    return random.integers(0, ROWS, [EXAMPLES, IDS]), random.normal(size=EXAMPLES).astype(np.float32)


def start_of(name):
    return np.random.default_rng(TABLES.index(name)).normal(size=[ROWS, DIM]).astype(np.float32)


def loss_of(pooled, labels):
    weight = tf1.get_variable("weight", initializer=np.float32([0.5, -1.0]), use_resource=True)
    return tf.reduce_mean((tf.reduce_sum(tf.add_n(pooled) * weight, 1) - labels) ** 2)


def model(strategy, ids, labels):
    """Returns the tables and the loss; the lookups are one call."""
    with strategy.embedding_scope():
        items = tf1.get_variable("items", initializer=start_of("items"))
    tables = [
        items,
        make(start_of("rows"), name="rows"),
        make(start_of("last"), name="last", mode=f"localized:{job.num_ranks() - 1}"),
        DynamicVariable(DIM, start_of("keys"), var_type="hbm", name="keys"),
    ]
    sparse = tf.RaggedTensor.from_row_lengths(tf.reshape(ids, [-1]), tf.fill(tf.shape(ids)[:1], IDS)).to_sparse()
    pooled = lookups.lookup_sparse(tables, [sparse] * 4, None, ["sum", "mean", "sum", "mean"], False)
    return tables, loss_of(pooled, labels)


def placeholders():
    return tf1.placeholder(tf.int64, [None, IDS]), tf1.placeholder(tf.float32, [None])


def train(folder, steps):
    """Trains from the last checkpoint in the folder, and returns this rank's rows of SOK's tables by key."""
    strategy = CollectiveStrategy()
    assert not context.is_initialized
    with tf.Graph().as_default(), strategy.scope():
        fed = placeholders()
        tables, loss = model(strategy, *fed)
        step = tf1.train.get_or_create_global_step()
        train_op = tf1.train.AdagradOptimizer(RATE).minimize(loss, global_step=step)
        exported = [rows.export(table) for table in tables[1:]]
        saving = {"save_checkpoint_steps": STEPS, "save_checkpoint_secs": None}
        with tf1.train.MonitoredTrainingSession(checkpoint_dir=folder, **saving) as session:
            for number in steps:
                session.run(train_op, dict(zip(fed, batch_of(number, context.rank), strict=True)))
            found = session.run(exported)
    return dict(zip(TABLES[1:], found, strict=True))


def trained_in_one_process():
    """Returns tables and slots after all steps, by their names in checkpoints, in plain TensorFlow."""
    with tf.Graph().as_default(), tf1.Session() as session:
        ids, labels = placeholders()
        tables = [tf1.get_variable(name, initializer=start_of(name), use_resource=True) for name in TABLES]
        pooled = [tf.gather(table, ids) for table in tables]
        reduce = [tf.reduce_sum, tf.reduce_mean]
        loss = loss_of([reduce[i % 2](one, 1) for i, one in enumerate(pooled)], labels)
        optimizer = tf1.train.AdagradOptimizer(RATE)
        train_op = optimizer.minimize(loss)
        session.run(tf1.global_variables_initializer())
        for step in range(2 * STEPS):
            parts = zip(*(batch_of(step, rank) for rank in range(2)), strict=True)
            session.run(train_op, dict(zip((ids, labels), map(np.concatenate, parts), strict=True)))
        variables = {v.name.split(":")[0]: v for v in tf1.global_variables()}
        return session.run(variables)


# Promise (sok.md): the strategy with `COLLECTIVE_STRATEGY=sok` trains as one process, and writes whole checkpoints and
# exports.
@pytest.mark.workers
def test_tables_train_as_one_process_and_their_checkpoint_is_whole(tmp_path):
    folder, expected = str(tmp_path), trained_in_one_process()
    call_workers(train, 2, folder, range(STEPS), environment=SOK, timeout_s=120)
    found = call_workers(train, 2, folder, range(STEPS, 2 * STEPS), environment=SOK, timeout_s=120)
    for rank, tables in enumerate(found):
        for name, (keys, values) in tables.items():
            np.testing.assert_allclose(values, expected[name][keys], rtol=1e-4, atol=1e-5, err_msg=name)
            owned = np.full(ROWS, rank == 1) if name == "last" else np.arange(ROWS) % 2 == rank
            np.testing.assert_array_equal(keys, np.arange(ROWS)[owned])
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
    for name in ("weight", *TABLES[:3]):
        for tensor in (name, f"{name}/Adagrad"):
            np.testing.assert_allclose(checkpoint.get_tensor(tensor), expected[tensor], rtol=1e-4, err_msg=tensor)
    # One worker restores what two have written.
    (alone,) = call_workers(train, 1, folder, (), environment=SOK, timeout_s=120)
    for name, (keys, values) in alone.items():
        np.testing.assert_array_equal(keys, np.arange(ROWS))
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-5)


def communicate():
    strategy = CollectiveStrategy()
    assert (job.rank(), job.num_ranks(), job.local_rank()) == (context.rank, 2, context.rank)
    assert not context.is_initialized, "numbers need no connection"
    mine = tf.constant([[1.0 + job.rank()], [10.0]])
    with strategy.scope():
        reduced = {op: job.allreduce(mine, op).numpy()[0, 0] for op in ("sum", "average", "max", "min")}
        assert reduced == {"sum": 3, "average": 1.5, "max": 2, "min": 1}
        np.testing.assert_array_equal(job.allgather(mine[: 1 + job.rank(), 0]), [1, 2, 10])
        np.testing.assert_array_equal(job.broadcast(mine, 1), [[2], [10]])
        received, splits = job.alltoall(mine, tf.constant([1, 1]))
        np.testing.assert_array_equal(received, [[1], [2]] if job.rank() == 0 else [[10], [10]])
        np.testing.assert_array_equal(splits, [1, 1])
        assert splits.dtype == tf.int32
    assert not named_job.is_started()
    job.set_comm_tool("horovod")
    assert named_job.size() == 2 and job.num_ranks() == 2
    with pytest.raises(RuntimeError, match="cannot be set more than once"):
        job.set_comm_tool("horovod")


# Promise (sok.md): the strategy with `COLLECTIVE_STRATEGY=sok` trains as one process, and writes whole checkpoints and
# exports.
@pytest.mark.workers
def test_the_scopes_collectives_are_those_of_sok():
    call_workers(communicate, 2, environment=SOK, timeout_s=60)


# Promise (sok.md): the strategy with `COLLECTIVE_STRATEGY=sok` trains as one process, and writes whole checkpoints and
# exports.
def test_a_strategy_alone_connects_nothing(monkeypatch):
    """A launcher, or an evaluator beside the job, makes one, and would wait for others in vain."""
    monkeypatch.setenv("COLLECTIVE_STRATEGY", "sok")
    monkeypatch.setattr(job, "_tool", None)
    for owner, name in ((context, "ensure_initialized"), (named_job, "start")):
        monkeypatch.setattr(owner, name, lambda: pytest.fail("connects"))
    CollectiveStrategy()
    assert job.is_started()
    job.set_comm_tool("single")
    CollectiveStrategy()
    assert not job.is_shared()


# Promise (sok.md): the strategy with `COLLECTIVE_STRATEGY=sok` trains as one process, and writes whole checkpoints and
# exports.
def test_a_model_with_a_lookup_of_sok_in_tables_of_the_scope_is_exported(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLECTIVE_STRATEGY", "sok")
    strategy = CollectiveStrategy()

    def build():
        ids = tf1.placeholder(tf.int64, [None, IDS])
        with strategy.embedding_scope():
            items = tf1.get_variable("items", initializer=start_of("items"))
        pooled = lookups.lookup_sparse(items, tf.RaggedTensor.from_tensor(ids), None, "sum", False)
        return ids, pooled + lookups.all2all_dense_embedding(items, ids)[:, 0]

    def signature():
        ids, result = build()
        return tf1.saved_model.predict_signature_def({"ids": ids}, {"result": result})

    with tf.Graph().as_default(), strategy.scope(), tf1.Session() as session:
        ids, result = build()
        session.run(tf1.global_variables_initializer())
        path = tf1.train.Saver().save(session, str(tmp_path / "model"))
        trained = session.run(result, {ids: [[1, 1, 2]]})
    with strategy.scope():
        folder = saved_models.export(str(tmp_path / "served"), path, signature)
    served = tf.saved_model.load(folder).signatures["serving_default"](ids=tf.constant([[1, 1, 2]], tf.int64))
    np.testing.assert_allclose(served["result"], trained)
    expected = start_of("items")[[1, 1, 2]].sum(0) + start_of("items")[1]
    np.testing.assert_allclose(trained[0], expected, rtol=1e-6)
