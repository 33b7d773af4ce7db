"""Tests of programs of SOK 1.x in graphs of TensorFlow 1, with Keras 3 and Keras 2."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import any_keras, job, native_optimizers, plugin_adam, rows, saver, version_1
from lockstep._src.compat.sok.any_keras_test import keras_2
from lockstep._src.compat.sok.layers import All2AllDenseEmbedding, DistributedEmbedding
from lockstep._src.compat.sok.loss_scaling import LossScaleOptimizer
from lockstep._src.tables.updates.lazy_adam import LazyAdamOptimizer

tf_keras = keras_2()
tf1 = tf.compat.v1
KEYS, DIM, STEPS = 12, 4, 3
TABLE = np.random.default_rng(5).normal(size=[KEYS, DIM]).astype(np.float32)
FED = [[[0, 3, 3], [7, 1, 2]], [[0, 5, 4], [9, 9, 9]], [[8, 8, 1], [3, 0, 11]]]


@pytest.fixture(autouse=True)
def started(monkeypatch):
    monkeypatch.setattr(job, "_tool", "single")
    monkeypatch.setattr(version_1, "_program", version_1._Program(2, None))
    with tf.Graph().as_default():
        yield


def train(make_variable, optimizer, scope):
    """Returns the rows after some steps; `make_variable` returns a variable and a lookup of [2, 3] keys."""
    with tf.Graph().as_default():
        variable, lookup, load, read = make_variable()
        keys = tf1.placeholder(tf.int64, [2, 3])
        weight = tf1.get_variable("weight", [DIM, 1], initializer=tf1.ones_initializer(), use_resource=True)
        loss = tf.reduce_sum(tf.matmul(lookup(keys), weight) ** 2)
        tables, others = version_1.split(tf1.trainable_variables())
        assert (tables or [variable]) == [variable]
        gradients = tf1.gradients(loss, [variable, weight], colocate_gradients_with_ops=True)
        made = optimizer()
        assert tf1.get_collection(version_1.GraphKeys.SparseOperationKitOptimizer) == plugins_in(made)
        if isinstance(made, LossScaleOptimizer):
            (scaled,) = tf1.gradients(made.get_scaled_loss(loss), [variable])
            gradients[0], none = made.get_unscaled_gradients([scaled, None])
            assert none is None
        with tf.control_dependencies([gradients[1]]), scope([variable, *others]):
            applied = made.apply_gradients([(gradients[0], variable)])
        with tf.control_dependencies([applied]):
            step = weight.assign_sub(0.1 * gradients[1])
        starts = [tf1.global_variables_initializer(), *([made.initializer] if hasattr(made, "initializer") else [])]
        tf1.get_default_graph().finalize()
        with tf1.Session() as session:
            session.run(starts)
            session.run(load)
            for fed in FED:
                session.run(step, {keys: fed})
            return session.run(read)


def table_of(hashed):
    def make():
        layer = DistributedEmbedding("mean", KEYS, DIM, 1, 3, use_hashtable=hashed)
        table = layer.embedding_variable
        assert len(tf1.get_collection(version_1.GraphKeys.SparseOperationKitEmbeddingLayers)) == 1

        def lookup(keys):
            indices = tf.constant([[row, column] for row in range(2) for column in range(3)], tf.int64)
            return layer(tf.SparseTensor(indices, tf.reshape(keys, [-1]), [2, 3]))[:, 0]

        return table, lookup, saver.Saver().load_embedding_values(table, TABLE), rows.export(table)[1]

    return make


def plain():
    table = tf1.get_variable("table", initializer=TABLE, use_resource=True)
    return table, lambda keys: tf.reduce_mean(tf.nn.embedding_lookup(table, keys), 1), tf.no_op(), table.value()


def plugins_in(optimizer):
    found = getattr(optimizer, "_optimizer", optimizer)
    return [found] if isinstance(found, (plugin_adam.Adam, plugin_adam._GraphAdam)) else []


class NoScope:
    def __init__(self, variables):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *unused):
        pass


def adam_of_tensorflow():
    return tf1.train.AdamOptimizer(0.1, epsilon=1e-7)


@pytest.mark.parametrize(
    ("keras", "hashed"), [(tf.keras, True), (tf_keras, False)], ids=["Keras of TensorFlow", "Keras 2"]
)
@pytest.mark.parametrize(
    ("make", "plain_make", "scope"),
    [
        (lambda: tf1.train.GradientDescentOptimizer(0.1), None, native_optimizers.OptimizerScope),
        (adam_of_tensorflow, None, native_optimizers.OptimizerScope),
        (lambda: plugin_adam.Adam(0.1), adam_of_tensorflow, NoScope),
        (lambda: LazyAdamOptimizer(0.1), None, native_optimizers.OptimizerScope),
        (lambda: LossScaleOptimizer(adam_of_tensorflow(), 1024), adam_of_tensorflow, native_optimizers.OptimizerScope),
        (lambda: LossScaleOptimizer(plugin_adam.Adam(0.1), "dynamic"), adam_of_tensorflow, NoScope),
    ],
    ids=["SGD", "Adam", "plugin Adam", "LazyAdam", "scaled", "dynamically scaled"],
)
def test_updates_are_those_of_an_ordinary_variable(keras, make, plain_make, scope, hashed):
    with any_keras.using(keras):
        trained = train(table_of(hashed), make, scope)
    np.testing.assert_allclose(trained, train(plain, plain_make or make, NoScope), 1e-4, 1e-5)


def test_dynamic_scale_skips_steps_that_are_not_finite():
    layer = All2AllDenseEmbedding(KEYS, DIM, 1, 1, dynamic_input=True, embedding_initializer="ones")
    factor = tf1.placeholder(tf.float32, [])
    optimizer = LossScaleOptimizer(tf1.train.GradientDescentOptimizer(0.5), "dynamic")
    loss = tf.reduce_sum(layer(tf.constant([3], tf.int64))) * factor
    (gradient,) = optimizer.get_unscaled_gradients(tf1.gradients(optimizer.get_scaled_loss(loss), [layer.var]))
    step = optimizer.apply_gradients([(gradient, layer.var)])
    scale = optimizer.loss_scale()
    with tf1.Session() as session:
        session.run([tf1.global_variables_initializer(), optimizer.initializer])
        session.run(step, {factor: 1.0})
        before = session.run(scale)
        session.run(step, {factor: np.inf})
        assert session.run(scale) == before / 2
        np.testing.assert_array_equal(session.run(rows.export(layer.var)[1]), np.full([1, DIM], 0.5))
    assert optimizer._learning_rate == 0.5
    assert optimizer.get_scaled_loss(lambda: loss)().dtype == tf.float32


def test_saver_in_one_graph(tmp_path):
    layers = [All2AllDenseEmbedding(KEYS, DIM, 1, 1, dynamic_input=True, use_hashtable=h) for h in (True, False)]
    tables, own = [layer.var for layer in layers], saver.Saver()
    load = [own.load_embedding_values(table, [TABLE[:5], TABLE[5:]]) for table in tables]
    chain = []
    for work in (own.dump_to_file, own.restore_from_file):
        for table in tables:
            with tf.control_dependencies(chain):
                chain = [work(table, str(tmp_path))]
    read = [layer(tf.range(KEYS, dtype=tf.int64), training=False) for layer in layers]
    too_many = own.load_embedding_values(tables[0], tf1.placeholder_with_default(np.zeros([13, DIM]), [None, DIM]))
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        assert session.run(load) == [b"OK"] * 2
        assert session.run(chain) == [b"OK"]
        for found in session.run(read):
            np.testing.assert_array_equal(found, TABLE)
        with pytest.raises(tf.errors.InvalidArgumentError, match="wanted at most 12, got"):
            session.run(too_many)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "EmbeddingVariable_1_keys.file",
        "EmbeddingVariable_1_values.file",
        "EmbeddingVariable_keys.file",
        "EmbeddingVariable_values.file",
    ]


def test_names_follow_the_graph(tmp_path):
    for _ in range(2):
        with tf.Graph().as_default():
            first = All2AllDenseEmbedding(KEYS, DIM, 1, 1).var
            with tf1.name_scope("tower"):
                second = All2AllDenseEmbedding(KEYS, DIM, 1, 1, use_hashtable=False).var
            third = All2AllDenseEmbedding(KEYS, DIM, 1, 1).var
            names = [table.m_var_name for table in (first, second, third)]
            assert names == ["EmbeddingVariable", "tower/EmbeddingVariable", "EmbeddingVariable_1"]
            assert second.name == "tower/EmbeddingVariable:0"
            done = saver.Saver().dump_to_file(second, str(tmp_path))
            with tf1.Session() as session:
                session.run(second.initializer)
                session.run(done)
    assert (tmp_path / "tower" / "EmbeddingVariable_values.file").stat().st_size == KEYS * DIM * 4


def test_named_layers_belong_to_a_graph():
    arguments = {"max_vocabulary_size_per_gpu": KEYS, "embedding_vec_size": DIM, "slot_num": 1, "nnz_per_slot": 1}
    layer = version_1.get_embedding("one", All2AllDenseEmbedding, arguments)
    assert version_1.get_embedding("one", None, {}) is layer
    with tf.Graph().as_default(), pytest.raises(ValueError, match="'one' does not exist and cannot create it"):
        version_1.get_embedding("one", None, {})
    meta_graph = tf1.train.export_meta_graph()
    assert meta_graph.collection_def["SparseOperationKitEmbeddingLayerStore"].WhichOneof("kind") is None
