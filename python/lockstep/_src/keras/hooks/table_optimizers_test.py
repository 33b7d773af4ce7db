"""A table of Keras RS has its own optimizer in a scope, regardless of the model's optimizer."""

# Promise of this file (keras.md): a layer of Keras RS may be built while a function is traced; a table's optimizer
# keeps all attributes.

import importlib.util

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("keras_rs") is None, reason="keras_rs is not installed; it needs Keras 3 and Python 3.11"
)

IDS = np.array([1, 2, 1])
# A step of SGD with rate 0.5 for the sum of the looked up rows: row 1 is looked up twice, row 2 once.
STEP = np.array([0, -1, -0.5, 0])


@pytest.fixture(name="keras")
def _keras():
    return pytest.importorskip("keras")


def trained(keras, optimizer):
    """Returns a table after a step with this optimizer, and the optimizer."""
    import keras_rs
    import tensorflow as tf

    import lockstep

    table = keras_rs.layers.TableConfig("t", 4, 2, "zeros", keras.optimizers.SGD(0.5))
    with lockstep.scope():
        layer = keras_rs.layers.DistributedEmbedding(keras_rs.layers.FeatureConfig("f", table, (3,), (3, 2)))
        dense = keras.layers.Dense(1, kernel_initializer="zeros")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(IDS)) + tf.reduce_sum(dense(tf.ones([1, 2])))
            loss = optimizer.scale_loss(loss)
        variables = [*layer.trainable_variables, *dense.trainable_variables]
        optimizer.apply(tape.gradient(loss, variables), variables)
        return np.asarray(layer.get_embedding_tables()["t"])


def test_a_table_is_updated_by_its_optimizer_alone(keras):
    optimizer = keras.optimizers.Adam(0.1, clipnorm=1e-3, weight_decay=0.1)
    np.testing.assert_allclose(trained(keras, optimizer), np.stack([STEP, STEP], 1))
    assert not any("embeddings" in v.path for v in optimizer.variables)
    assert [o.name for o in optimizer.table_optimizers] == ["t_sgd"]


def test_a_layer_is_built_in_a_function_and_its_optimizer_keeps_what_its_config_lacks(keras):
    import keras_rs
    import tensorflow as tf

    import lockstep

    class Boosted(keras.optimizers.SGD):
        def __init__(self, learning_rate, boost):
            super().__init__(learning_rate)
            self.boost = boost

        def update_step(self, gradient, variable, learning_rate):
            super().update_step(self.boost * tf.convert_to_tensor(gradient), variable, learning_rate)

    tables = [keras_rs.layers.TableConfig(n, 4, 2, "zeros", Boosted(0.25, 2.0)) for n in "ab"]
    features = {t.name: keras_rs.layers.FeatureConfig(t.name, t, (3,), (3, 2)) for t in tables}
    with lockstep.scope():
        layer, optimizer = keras_rs.layers.DistributedEmbedding(features), keras.optimizers.Adam(0.1)

        @tf.function
        def step(ids):
            with tf.GradientTape() as tape:
                loss = sum(tf.reduce_sum(rows) for rows in layer({"a": ids, "b": ids}).values())
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)

        step(IDS)
        for table in layer.get_embedding_tables().values():
            np.testing.assert_allclose(table, np.stack([STEP, STEP], 1))
        own = optimizer.table_optimizers
        assert [(o.name, int(o.iterations), o.iterations.path) for o in own] == [
            ("a_boosted", 1, "a_boosted/iteration"),
            ("b_boosted", 1, "b_boosted/iteration"),
        ]


@pytest.mark.parametrize(
    ("placement", "error"), [("sparsecore", "not running under a TPU strategy"), ("gpu", "unsupported placement 'gpu'")]
)
def test_placements_of_other_devices_are_refused(keras, placement, error):
    import keras_rs

    import lockstep

    table = keras_rs.layers.TableConfig("t", 4, 2, placement=placement)
    with lockstep.scope(), pytest.raises(ValueError, match=error):
        keras_rs.layers.DistributedEmbedding(keras_rs.layers.FeatureConfig("f", table, (3,), (3, 2)))


@pytest.mark.parametrize("kind", ["LossScaleOptimizer", "MultiOptimizer"])
def test_optimizers_inside_of_others_leave_it_as_well(keras, kind):
    inner = keras.optimizers.Adam(0.1)
    scaled = kind == "LossScaleOptimizer"
    made = getattr(keras.optimizers, kind)(inner if scaled else lambda variable: inner)
    np.testing.assert_allclose(trained(keras, made), np.stack([STEP, STEP], 1))


def test_keras_rs_that_is_imported_inside_of_a_scope_is_refused(keras, monkeypatch):
    import sys

    import keras_rs

    import lockstep

    monkeypatch.delitem(sys.modules, "keras_rs")
    with lockstep.scope():
        monkeypatch.setitem(sys.modules, "keras_rs", keras_rs)
        with pytest.raises(RuntimeError, match=r"^sgd.*: keras_rs was imported inside the scope"):
            keras.optimizers.SGD().build([])
