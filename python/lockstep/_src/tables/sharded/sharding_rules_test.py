"""Tests of the variables that a scope shards, and of TensorFlow's functions that find the tables again."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.tables.sharded import RowShardedTable, ShardingRules, is_sharded, sharding_scope, tables
from lockstep.testing import call_workers

v1 = tf.compat.v1


@pytest.fixture
def graph():
    context.ensure_initialized()
    with tf.Graph().as_default() as g:
        yield g


def in_scope(rules=None):
    return sharding_scope(rules or ShardingRules())


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "trainable", "sharded"),
    [
        ("table", (9, 4), tf.float32, None, True),
        ("scope/weights", (9, 1), tf.float64, True, True),
        ("kernels", (9, 4), tf.float32, True, True),
        ("dense/kernel", (9, 4), tf.float32, True, False),
        ("dense_1/kernel_2", (9, 4), tf.float32, True, False),
        ("lstm/recurrent_kernel", (9, 4), tf.float32, True, False),
        ("table/part_0", (9, 4), tf.float32, True, False),
        ("slot", (9, 4), tf.float32, False, False),
        ("bias", (9,), tf.float32, True, False),
        ("cube", (9, 4, 2), tf.float32, True, False),
        ("counts", (9, 4), tf.int64, True, False),
        ("small", (5, 4), tf.float32, True, False),
    ],
)
def test_trainable_floating_point_matrices_of_enough_rows_are_sharded(graph, name, shape, dtype, trainable, sharded):
    with in_scope(ShardingRules(replicate_up_to_rows=5)):
        got = v1.get_variable(name, shape, dtype, v1.zeros_initializer(), trainable=trainable)
    assert isinstance(got, RowShardedTable) == is_sharded(got) == sharded
    assert (got in list(tables())) == sharded
    assert (got in v1.trainable_variables()) == (trainable is not False)
    assert got in v1.global_variables()


@pytest.mark.parametrize(
    "make",
    [
        lambda: v1.get_variable("a", [9, 4]),
        lambda: v1.get_variable("a", [9, 4], use_resource=False),
        lambda: v1.get_variable("a", initializer=np.zeros([9, 4], np.float32)),
        lambda: v1.get_variable("a", initializer=tf.zeros([9, 4])),
        lambda: v1.get_variable("a", [9, 4], initializer=lambda shape, dtype: tf.zeros(shape, dtype)),
        lambda: tf.Variable(tf.zeros([9, 4]), name="a"),
        lambda: tf.Variable([[0.0] * 4] * 9, name="a"),
        lambda: tf.Variable(lambda: tf.zeros([9, 4]), name="a"),
        lambda: v1.Variable(np.zeros([9, 4]), name="a"),
        lambda: v1.Variable(tf.zeros([9, 4]), name="a", use_resource=False),
    ],
)
def test_every_way_to_make_a_variable_is_covered(graph, make):
    with in_scope():
        table = make()
    assert isinstance(table, RowShardedTable)
    assert table.name == "a:0" and table.logical_shape == (9, 4)


def test_outside_of_the_scope_nothing_is_sharded(graph):
    with in_scope():
        pass
    assert not is_sharded(v1.get_variable("a", [9, 4]))


def look_up_in_a_layer_of_keras_2():
    context.ensure_initialized()
    values = np.arange(36, dtype=np.float32).reshape(9, 4)
    with in_scope():
        layer = tf.keras.layers.Embedding(9, 4, embeddings_initializer=tf.keras.initializers.Constant(values))
        ids = tf.constant([[context.rank, 8], [3, 3]])
        with tf.GradientTape() as tape:
            rows = layer(ids)
            loss = tf.reduce_sum(rows)
    np.testing.assert_array_equal(rows, values[ids])
    assert is_sharded(layer.embeddings)
    gradient = tape.gradient(loss, layer.embeddings)
    tf.keras.optimizers.legacy.SGD(1.0).apply_gradients([(gradient, layer.embeddings)])
    return layer.embeddings.numpy() - values


@pytest.mark.workers
@pytest.mark.skipif(not tf.__version__.startswith("2.15."), reason="this TensorFlow comes with Keras 3")
def test_an_embedding_layer_of_keras_2_looks_up_in_a_table():
    context.ensure_initialized()
    expected = np.zeros([9, 4], np.float32)
    for row in (0, 8, 3, 3, 1, 8, 3, 3):
        expected[row] -= 0.5
    for change in call_workers(look_up_in_a_layer_of_keras_2, 2):
        np.testing.assert_array_equal(change, expected)


def test_options_of_the_context_say_what_is_sharded(graph):
    made = {}
    with context.scope(sharding=True), sharding_scope():
        made["table"] = v1.get_variable("table", [9, 4])
        with context.scope(batch_size=9):
            made["no larger than a batch"] = v1.get_variable("small", [9, 4])
        with context.scope(mode="infer"):
            made["for inference"] = v1.get_variable("infer", [9, 4])
        with context.scope(sharding=False):
            made["switched off"] = v1.get_variable("off", [9, 4])
    assert [name for name, variable in made.items() if is_sharded(variable)] == ["table"]


@pytest.mark.parametrize("partitioner", [None, v1.fixed_size_partitioner(3)])
def test_reuse_finds_the_table_and_holds_it_to_its_shape(graph, partitioner):
    with in_scope():
        with v1.variable_scope("model", partitioner=partitioner):
            table = v1.get_variable("table", [9, 4])
        with v1.variable_scope("model", reuse=True, partitioner=partitioner):
            assert v1.get_variable("table", [9, 4]) is table
            with pytest.raises(ValueError, match=r"\(8, 4\).*\(9, 4\)"):
                v1.get_variable("table", [8, 4])


def test_a_variable_that_is_not_sharded_keeps_its_partitioner(graph):
    with in_scope(), v1.variable_scope("model", partitioner=v1.fixed_size_partitioner(3)):
        bias = v1.get_variable("bias", [9])
    assert len(list(bias)) == 3 and not any(map(is_sharded, bias))


ROWS = {"a": 17, "b": 23}
DIM = 4


def features(rank):
    random = np.random.RandomState(rank)
    return {name: random.randint(0, 1000, [5, 3]).astype(np.int64) for name in (*ROWS, "c")}


def columns():
    categorical = {
        n: tf.feature_column.categorical_column_with_identity(n, r, default_value=0) for n, r in ROWS.items()
    }
    hashed = tf.feature_column.categorical_column_with_hash_bucket("c", 31, tf.int64)
    init = v1.random_normal_initializer(seed=5)
    shared = v1.feature_column.shared_embedding_columns(
        [tf.feature_column.categorical_column_with_hash_bucket(n, 19, tf.int64) for n in ROWS], DIM, initializer=init
    )
    embedded = [
        tf.feature_column.embedding_column(c, DIM, combiner="mean", initializer=init)
        for c in (*categorical.values(), hashed)
    ]
    return [*embedded, *shared]


def model(feature_values, partitioner, reuse):
    with v1.variable_scope("model", partitioner=partitioner, reuse=reuse):
        layer = v1.feature_column.input_layer(feature_values, columns())
        linear = v1.feature_column.linear_model(
            feature_values, [tf.feature_column.categorical_column_with_hash_bucket("a", 13, tf.int64)]
        )
        return tf.reduce_sum(tf.sin(layer)) + tf.reduce_sum(tf.cos(linear))


def trained_columns(ranks, scope, partitioner):
    """Returns the mean of the workers' losses before and after a step; each worker builds the model twice."""
    with tf.Graph().as_default(), scope:
        losses = [model(features(r), partitioner, v1.AUTO_REUSE) for r in ranks]
        again = [model(features(r), partitioner, True) for r in ranks]
        train_op = v1.train.AdagradOptimizer(0.3).minimize(tf.add_n(losses) / len(losses))
        names = sorted(v.op.name for v in tables())
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            before = session.run(losses)
            session.run(train_op)
            return before, session.run(again), names


def train_columns_on_worker(partitioned):
    context.ensure_initialized()
    partitioner = v1.fixed_size_partitioner(3) if partitioned else None
    (before,), (after,), names = trained_columns([context.rank], in_scope(), partitioner)
    return before, after, names


@pytest.mark.workers
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_feature_columns_train_as_in_plain_tensorflow(workers, partitioned):
    partitioner = v1.fixed_size_partitioner(1) if partitioned else None
    before, after, _ = trained_columns(range(workers), tf.name_scope(""), partitioner)
    for rank, (got_before, got_after, names) in enumerate(call_workers(train_columns_on_worker, workers, partitioned)):
        assert len(names) == 5, names
        np.testing.assert_allclose(got_before, before[rank], rtol=1e-5)
        np.testing.assert_allclose(got_after, after[rank], rtol=1e-5)
