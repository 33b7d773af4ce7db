"""Replicated tables are fused only in training, and are otherwise the variables that TensorFlow makes.

lookups_test.py and workers_test.py compare their lookups with plain TensorFlow.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import ref_variable, resource_variable_ops

from lockstep._src.collectives.statistics import stats
from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables.pooling.replicated import ReplicatedRefTable, ReplicatedTable
from lockstep._src.tables.sharded import RowShardedTable
from lockstep.testing import call_workers

tf1 = tf.compat.v1
VALUES = np.arange(20, dtype=np.float32).reshape(5, 4)
FUSED = {"LockstepDistinct", "LockstepPool"}
HAS_KERAS_3 = getattr(tf.keras, "__version__", "2").startswith("3")


def _ids() -> tf.RaggedTensor:
    return tf.ragged.constant([[3, 1, 3], [], [0]], dtype=tf.int64)


def _look_up(table) -> tf.Tensor:
    return tf.nn.embedding_lookup_sparse(table, _ids(), None, combiner="sum")


WANTED = [2 * VALUES[3] + VALUES[1], np.zeros(4), VALUES[0]]


def _types(graph) -> set[str]:
    functions = [function.node_def for function in graph.as_graph_def().library.function]
    return {node.op for nodes in (graph.as_graph_def().node, *functions) for node in nodes}


def test_matrices_that_the_rules_leave_alone_are_replicated_tables():
    makers = {
        "small": lambda: tf1.get_variable("small", initializer=VALUES[:1]),
        "slot": lambda: tf1.get_variable("slot", initializer=VALUES, trainable=False),
        "kernel": lambda: tf1.get_variable("dense/kernel", initializer=VALUES),
        "vector": lambda: tf1.get_variable("vector", initializer=VALUES[0]),
        "integers": lambda: tf1.get_variable("integers", initializer=VALUES.astype(np.int32)),
    }
    with tf.Graph().as_default(), scope():
        tables = {name: isinstance(make(), ReplicatedTable) for name, make in makers.items()}
        assert tables == {"small": True, "slot": False, "kernel": False, "vector": False, "integers": False}
        assert type(tf1.get_variable("whole", initializer=VALUES)) is ReplicatedTable
        parts = tf1.get_variable("parts", [6, 4], partitioner=tf1.fixed_size_partitioner(2))
        assert {type(part) for part in parts} == {resource_variable_ops.ResourceVariable}
        with embedding_scope():
            assert type(tf1.get_variable("sharded", initializer=VALUES)) is RowShardedTable
            assert type(tf1.get_variable("row", initializer=VALUES[:1])) is ReplicatedTable
    assert type(tf.Variable(VALUES)) is resource_variable_ops.ResourceVariable


@pytest.mark.parametrize("use_resource", [True, False])
def test_a_graph_with_either_class_of_variables(use_resource, tmp_path):
    with tf.Graph().as_default() as graph, scope(), tf1.Session() as session:
        table = tf1.get_variable("table", initializer=VALUES, use_resource=use_resource)
        assert isinstance(table, (ReplicatedRefTable, ReplicatedTable)[use_resource])
        with tf1.variable_scope("", reuse=True):
            assert tf1.get_variable("table", [5, 4], use_resource=use_resource) is table
        pooled = _look_up(table)
        (grad,) = tf1.gradients(tf.reduce_sum(pooled), [table])
        train_op = tf1.train.AdagradOptimizer(1.0, 1.0).minimize(tf.reduce_sum(pooled))
        session.run(tf1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(pooled), WANTED)
        slices = session.run(grad)
        rows = dict(zip(slices.indices.tolist(), slices.values[:, 0].tolist(), strict=True))
        assert rows == {3: 2.0, 1: 1.0, 0: 1.0}
        session.run(train_op)
        trained = session.run(table)
        saver = tf1.train.Saver()
        path = saver.save(session, str(tmp_path / "model"))
        session.run(table.assign(tf.zeros_like(table)))
        saver.restore(session, path)
        np.testing.assert_array_equal(session.run(table), trained)
        assert _types(graph) >= FUSED
        meta_graph = tf1.train.export_meta_graph()
    with tf.Graph().as_default(), scope(), tf1.Session() as session:
        tf1.train.import_meta_graph(meta_graph).restore(session, path)
        (table,) = tf1.trainable_variables()
        assert type(table) in (resource_variable_ops.ResourceVariable, ref_variable.RefVariable)
        np.testing.assert_array_equal(session.run(table), trained)


@pytest.mark.parametrize("options", [{"mode": "infer"}, {"mode": "eval"}, {"fused_lookups": False}], ids=str)
def test_outside_of_training_and_without_the_option_it_is_not_fused(options):
    with scope():
        table = tf.Variable(VALUES)
    with tf.Graph().as_default(), scope(**options):
        of_graph = tf1.get_variable("table", initializer=VALUES)
        _look_up(of_graph)
        assert not _types(of_graph.graph) & FUSED
    with scope(**options):
        graph = tf.function(lambda: _look_up(table)).get_concrete_function().graph
        assert not _types(graph) & FUSED
        np.testing.assert_array_equal(_look_up(table), WANTED)


def test_what_is_traced_for_a_saved_model_or_for_xla_is_not_fused(tmp_path):
    module = tf.Module()
    with scope():
        module.table = tf.Variable(VALUES)
        module.look_up = tf.function(lambda: _look_up(module.table), input_signature=[])
        with tf.GradientTape():
            module.look_up()  # the function that is traced here is saved
        tf.saved_model.save(module, str(tmp_path))
        graph = tf.function(lambda: _look_up(module.table), jit_compile=True).get_concrete_function().graph
        assert not _types(graph) & FUSED
    loaded = tf.saved_model.load(str(tmp_path))
    assert not _types(loaded.look_up.get_concrete_function().graph) & FUSED
    np.testing.assert_array_equal(loaded.look_up(), WANTED)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda table: pickle.loads(pickle.dumps(table))])
def test_a_copy_is_an_ordinary_variable(copied):
    with scope():
        table = tf.Variable(VALUES)
    other = copied(table)
    assert type(other) is resource_variable_ops.ResourceVariable
    np.testing.assert_array_equal(other, VALUES)
    table.assign_add(np.ones_like(VALUES))
    np.testing.assert_array_equal(other, VALUES)


def test_it_is_not_among_the_tables_that_are_counted():
    with scope():
        table = tf.Variable(VALUES, name="replica")
        _look_up(table)
    assert "replica" not in stats()["tables"]


def test_small_integers_and_an_id_out_of_range():
    with scope():
        table = tf.Variable(VALUES, name="table")
    ids = tf.RaggedTensor.from_row_lengths(tf.constant([3, 1], tf.int16), [2])
    for look_up in (tf.nn.embedding_lookup_sparse, tf.nn.safe_embedding_lookup_sparse):
        np.testing.assert_array_equal(look_up(table, ids, None, combiner="sum"), [VALUES[3] + VALUES[1]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"table 'table': id 5 at position 0 .*\[0, 5\)"):
        tf.nn.embedding_lookup_sparse(table, tf.ragged.constant([[5]]), None)


def trained_by_keras():
    """Returns the rows of a layer's table after training with a model of Keras 3, and the ops of its prediction."""
    import keras

    context.ensure_initialized()

    class Bag(keras.layers.Layer):
        def build(self, shape):
            del shape
            self.rows = self.add_weight(shape=[5, 4], initializer="ones", name="rows")

        def call(self, ids):
            lookup = tf.RaggedTensor.from_tensor(tf.cast(ids, tf.int64))
            found = tf.nn.embedding_lookup_sparse(self.rows.value, lookup, None, combiner="mean")
            return keras.ops.sum(found, axis=-1, keepdims=True)

    with scope():
        model = keras.Sequential([keras.Input([3], dtype="int32"), bag := Bag()])
        model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=False)
        is_table = isinstance(bag.rows._value, ReplicatedTable)
        ids = (np.arange(12).reshape(4, 3) + context.rank) % 5
        model.fit(ids, np.zeros([4, 1]), epochs=2, batch_size=4, verbose=0)
        predict = tf.function(lambda: model(ids, training=False)).get_concrete_function().graph
        train = tf.function(lambda: model(ids, training=True)).get_concrete_function().graph
        return bag.rows.numpy(), is_table, bool(_types(train) & FUSED), bool(_types(predict) & FUSED)


@pytest.mark.workers
@pytest.mark.skipif(not HAS_KERAS_3, reason="needs Keras 3")
def test_a_model_of_keras_3_trains_on_workers_with_it():
    results = call_workers(trained_by_keras, 2, timeout_s=120)
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert (results[0][0] < 0.9).all(), "all rows are trained"
    assert [result[1:] for result in results] == [(True, True, False)] * 2
