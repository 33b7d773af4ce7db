"""Tests that lookups and their gradients equal plain TensorFlow's, on one worker and on several."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.tables.sharded import RowShardedTable, ShardingRules, sharding_scope
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

ROWS, DIM = 23, 4
RATE = 0.1
TABLE = np.random.RandomState(0).uniform(-1, 1, (ROWS, DIM)).astype(np.float32)


def ids(rank, shape, dtype=np.int64):
    """Returns a worker's ids, from few enough rows for duplicates within and between workers."""
    return np.random.RandomState(10 + rank).randint(0, ROWS, shape).astype(dtype)


def sparse_ids(rank, empty_row=False):
    values = ids(rank, [3, 5])
    values[np.random.RandomState(rank).rand(3, 5) < 0.4] = -1
    values[:, 0] = np.abs(values[:, 0])
    if empty_row:
        values[1] = -1
    present = np.argwhere(values >= 0)
    return tf.SparseTensor(present, values[values >= 0], [3, 5])


def sparse_weights(rank):
    sparse = sparse_ids(rank)
    return sparse.with_values(tf.cast(tf.range(1, tf.size(sparse.values) + 1), tf.float32))


def _ragged(rank):
    return tf.RaggedTensor.from_row_lengths(ids(rank, [6]), [2, 0, 4])


def _in_cond(table, rank):
    # Both branches look up; all workers take the same one.
    taken = tf.compat.v1.placeholder_with_default(True, []) if not tf.executing_eagerly() else tf.constant(True)
    return tf.cond(
        taken,
        lambda: tf.nn.embedding_lookup(table, ids(rank, [4])),
        lambda: 2.0 * tf.nn.embedding_lookup(table, ids(rank, [4])),
    )


# The reads of a table by a worker.
LOOKUPS = {
    "embedding_lookup": lambda t, r: tf.nn.embedding_lookup(t, ids(r, [9])),
    "int32 ids": lambda t, r: tf.nn.embedding_lookup(t, ids(r, [9], np.int32)),
    "a scalar id": lambda t, r: tf.nn.embedding_lookup(t, ids(r, [])),
    "ids of rank 3": lambda t, r: tf.nn.embedding_lookup(t, ids(r, [2, 3, 2])),
    "no ids": lambda t, r: tf.nn.embedding_lookup(t, ids(r, [0, 2])),
    "no ids on the other workers": lambda t, r: tf.nn.embedding_lookup(t, ids(r, [5 if r == 0 else 0])),
    "ids of unknown shape": lambda t, r: tf.nn.embedding_lookup(t, tf.reshape(ids(r, [6]), tf.constant([2, 3]) + 0)),
    "max_norm": lambda t, r: tf.nn.embedding_lookup(t, ids(r, [9]), max_norm=0.8),
    "of version 1": lambda t, r: tf.compat.v1.nn.embedding_lookup([t], ids(r, [9]), partition_strategy="div"),
    "ragged": lambda t, r: tf.nn.embedding_lookup(t, _ragged(r)).to_tensor(),
    "sparse, sum": lambda t, r: tf.nn.embedding_lookup_sparse(t, sparse_ids(r), None, combiner="sum"),
    "sparse, mean": lambda t, r: tf.nn.embedding_lookup_sparse(t, sparse_ids(r), None, combiner="mean"),
    "sparse, sqrtn, max_norm": lambda t, r: tf.nn.embedding_lookup_sparse(
        t, sparse_ids(r), None, combiner="sqrtn", max_norm=0.7
    ),
    "sparse with weights": lambda t, r: tf.nn.embedding_lookup_sparse(
        t, sparse_ids(r), sparse_weights(r), combiner="mean"
    ),
    "sparse of version 1": lambda t, r: tf.compat.v1.nn.embedding_lookup_sparse(t, sparse_ids(r), sparse_weights(r)),
    "safe sparse": lambda t, r: tf.nn.safe_embedding_lookup_sparse(t, sparse_ids(r, empty_row=True), default_id=3),
    "safe sparse of version 1": lambda t, r: tf.compat.v1.nn.safe_embedding_lookup_sparse(
        [t], sparse_ids(r, empty_row=True), combiner="sum"
    ),
    "gather": lambda t, r: tf.gather(t, ids(r, [3, 2])),
    "gather of a lookup": lambda t, r: tf.gather(tf.gather(t, ids(r, [5, 2])), [4, 0, 4]),
    "gather_nd of rows": lambda t, r: tf.gather_nd(t, ids(r, [5, 1])),
    "gather_nd of elements": lambda t, r: tf.gather_nd(t, np.stack([ids(r, [2, 3]), ids(r, [2, 3]) % DIM], -1)),
    "in a conditional": _in_cond,
    # Dense reads.
    "gather of columns": lambda t, r: tf.gather(t, [0, 2, 0], axis=1),
    "a row": lambda t, r: t[3 + r],
    "a slice": lambda t, r: t[2:9, 1:],
    "matmul": lambda t, r: tf.matmul(tf.one_hot(ids(r, [4]), ROWS), t),
    "arithmetic": lambda t, r: (2.0 * t + r) / 3.0,
    "identity": lambda t, r: tf.identity(t),
    "read_value": lambda t, r: t.read_value(),
    "regularizer and lookup": lambda t, r: tf.nn.l2_loss(t) + tf.nn.embedding_lookup(t, ids(r, [4])),
}


def in_graph(make_table, lookup, ranks):
    """Returns lookups of some workers, and the table after a step of gradient descent on the mean of their losses."""
    with tf.Graph().as_default():
        table = make_table()
        values = [lookup(table, rank) for rank in ranks]
        loss = tf.add_n([tf.reduce_sum(tf.sin(v)) for v in values]) / len(values)
        train_op = tf.compat.v1.train.GradientDescentOptimizer(RATE).minimize(loss)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            looked_up = session.run(values)
            session.run(train_op)
            return looked_up, session.run(table)


def eagerly(make_table, lookup, ranks, wrap=lambda f: f):
    """Returns the same as `in_graph` under eager execution; `wrap` is applied to the step."""
    table = make_table()

    def step():
        with tf.GradientTape() as tape:
            values = [lookup(table, rank) for rank in ranks]
            loss = tf.add_n([tf.reduce_sum(tf.sin(v)) for v in values]) / len(values)
        gradient = tape.gradient(loss, table)
        if isinstance(gradient, tf.IndexedSlices):
            table.scatter_sub(tf.IndexedSlices(RATE * gradient.values, gradient.indices))
        elif gradient is not None:
            table.assign_sub(RATE * gradient)
        return values

    return [v.numpy() for v in wrap(step)()], table.numpy()


MODES = {"graph": in_graph, "eager": eagerly, "function": functools.partial(eagerly, wrap=tf.function)}


def plain_table():
    return tf.Variable(TABLE, name="table")


def sharded_table():
    with sharding_scope(ShardingRules()):
        return tf.Variable(TABLE, name="table")


def look_up_on_worker(mode):
    """Returns the result of every lookup on this worker, and the table afterwards."""
    if mode == "graph of version 1":
        tf.compat.v1.disable_v2_behavior()
        mode = "graph"
    context.ensure_initialized()
    results = {}
    for name, lookup in LOOKUPS.items():
        try:
            (value,), table = MODES[mode](sharded_table, lookup, [context.rank])
        except Exception as e:
            raise AssertionError(name) from e
        results[name] = value, table
    return results


@functools.cache
def on_workers(workers, mode):
    return call_workers(look_up_on_worker, workers, mode, timeout_s=180)


@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize(
    ("workers", "mode"),
    [
        (1, "graph"),
        pytest.param(1, "function", marks=pytest.mark.long),
        (2, "graph"),
        (2, "graph of version 1"),
        (2, "eager"),
        (2, "function"),
        pytest.param(4, "graph", marks=pytest.mark.long),
    ],
)
def test_reads_and_learns_as_plain_tensorflow_does(workers, mode, name):
    values, table = in_graph(plain_table, LOOKUPS[name], range(workers))
    for rank, results in enumerate(on_workers(workers, mode)):
        got, table_after = results[name]
        np.testing.assert_allclose(got, values[rank], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(table_after, table, rtol=1e-5, atol=1e-6)


def raise_and_go_on(eager):
    context.ensure_initialized()
    with tf.Graph().as_default() if not eager else tf.init_scope():
        table = sharded_table()
        bad = [2, ROWS + 1] if context.rank == context.world_size - 1 else [2]

        def look_up(values):
            if eager:
                return tf.nn.embedding_lookup(table, values).numpy()
            return session.run(tf.nn.embedding_lookup(table, values))

        session = None if eager else tf.compat.v1.Session()
        if session:
            session.run(tf.compat.v1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            look_up(bad)
        np.testing.assert_array_equal(look_up([5]), TABLE[[5]])
        return error.value.message


# Promise (hybridbackend.md): an error on all workers (HybridBackend, a wrong result: ids beyond a table's rows are read
# as zeros, or not checked).
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_id_out_of_range_is_every_workers_error_and_the_job_can_go_on(workers, eager):
    for message in call_workers(raise_and_go_on, workers, eager):
        assert f"table 'table': id {ROWS + 1} at position 1" in message
        assert f"[0, {ROWS})" in message
        if workers > 1:
            assert f"rank {workers - 1}: " in message


def write_tables():
    context.ensure_initialized()
    table = sharded_table()
    changed = TABLE + 1
    table.assign(changed)
    np.testing.assert_array_equal(table.numpy(), changed)
    table.assign_add(table.local_value())
    np.testing.assert_array_equal(table.numpy(), 2 * changed)
    with pytest.raises(ValueError, match=r"\(23, 4\).*rank"):
        table.assign(changed[:3])
    for refused in (lambda: table[0].assign(changed[0]), lambda: table.scatter_nd_add([[0]], changed[:1])):
        with pytest.raises(NotImplementedError, match="'table' is sharded"):
            refused()
    with pytest.raises(NotImplementedError, match="Saver"):
        tf.train.Checkpoint(table=table).write("/nonexistent/checkpoint")
    return table.shape.as_list(), table.logical_shape.as_list(), repr(table)


def test_writes_take_the_whole_table_or_the_shard():
    for rank, (shape, logical_shape, text) in enumerate(call_workers(write_tables, 2)):
        assert (shape, logical_shape) == ([12 - rank, DIM], [ROWS, DIM])
        assert f"{12 - rank} rows on rank {rank} of 2" in text


def tables_smaller_than_the_job():
    context.ensure_initialized()
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with tf.Graph().as_default():
        table = RowShardedTable(values, name="small")
        row = tf.nn.embedding_lookup(table, [1, 0, 1])
        train_op = tf.compat.v1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(row))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            np.testing.assert_array_equal(session.run(row), values[[1, 0, 1]])
            session.run(train_op)
            np.testing.assert_allclose(session.run(table), values - 0.1, rtol=1e-5)
    return table.shape.as_list()


# Promise (hybridbackend.md): it works (HybridBackend: a table with fewer rows than workers breaks).
def test_a_table_with_fewer_rows_than_workers_works():
    assert call_workers(tables_smaller_than_the_job, 3) == [[1, 3], [1, 3], [0, 3]]
