"""`lockstep.keras.DistributedEmbedding`: dynamic tables in the layer of Keras RS; the oracle is Keras RS' own layer."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

if importlib.util.find_spec("keras_rs") is None:
    pytest.skip("keras_rs is not installed; it needs Keras 3 and Python 3.11", allow_module_level=True)

import keras  # noqa: E402
import keras_rs  # noqa: E402

from lockstep import embedding_scope, scope  # noqa: E402
from lockstep.embedding import CounterFilter, EmbeddingVariableOption  # noqa: E402
from lockstep.keras import DistributedEmbedding, TableConfig  # noqa: E402
from lockstep.testing import call_workers  # noqa: E402

FeatureConfig = keras_rs.layers.FeatureConfig
IDS = np.array([[3, 1], [1, 1], [0, 2]])
RAGGED = tf.ragged.constant([[3, 1], [], [2]], dtype=tf.int64)
INPUTS = {
    "single": (IDS[:, 0], np.array([0.5, 2, 3], np.float32)),
    "dense": (IDS, np.array([[0.5, 2], [1, 3], [2, 1]], np.float32)),
    "ragged": (RAGGED, tf.ragged.constant([[0.5, 2.0], [], [3.0]])),
    "sparse": (RAGGED.to_sparse(), tf.SparseTensor(RAGGED.to_sparse().indices, [0.5, 2.0, 3.0], [3, 2])),
}


def layer(combiner="sum", cls=DistributedEmbedding, **table):
    table = TableConfig("keys", embedding_dim=2, combiner=combiner, **table)
    return cls({"f": FeatureConfig("f", table, (None, None), (None, 2))}, name="layer")


@pytest.mark.pairwise
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("kind", INPUTS)
def test_rows_are_combined_as_in_keras_rs(kind, combiner, weighted):
    ids, weights = INPUTS[kind]
    table = TableConfig("keys", embedding_dim=2, combiner=combiner)
    shape = (None,) if kind == "single" else (None, None)
    dynamic = DistributedEmbedding({"f": FeatureConfig("f", table, shape, (None, 2))})
    dynamic({"f": tf.range(4, dtype=tf.int64)[:, tf.newaxis] if kind != "single" else tf.range(4)}, training=True)
    expected = keras_rs.layers.EmbedReduce(4, 2, combiner=combiner)
    expected.build(None)
    rows = tf.nn.embedding_lookup(dynamic.trainable_variables[0].value, tf.range(4, dtype=tf.int64))
    expected.embeddings.assign(rows)
    assert len(np.unique(rows)) == 8
    weights = {"f": weights} if weighted else None
    got = dynamic({"f": ids}, weights)["f"]
    np.testing.assert_allclose(got, expected(ids, weights and weights["f"]), atol=1e-6)


def test_strings_are_keys_and_features_may_share_a_table():
    table = TableConfig("words", embedding_dim=2, key_dtype="string", initializer="ones")
    features = {name: FeatureConfig(name, table, (None,), (None, 2)) for name in ("query", "title")}
    shared = DistributedEmbedding(features)
    found = shared({"query": tf.constant(["a", "b"]), "title": tf.constant(["b", "c"])}, training=True)
    np.testing.assert_array_equal(found["title"], np.ones([2, 2]))
    assert len(shared.trainable_variables) == 1
    assert shared.trainable_variables[0].table.total_count() == 3


def test_a_configuration_survives_a_file():
    option = EmbeddingVariableOption(filter_option=CounterFilter(filter_freq=3))
    saved = layer(key_dtype="string", option=option, optimizer=keras.optimizers.SGD(0.25))
    config = keras.saving.serialize_keras_object(saved)
    loaded = keras.saving.deserialize_keras_object(config)
    assert type(loaded) is DistributedEmbedding
    table = loaded._feature_configs["f"].table
    assert (table.vocabulary_size, table.key_dtype, table.optimizer.learning_rate) == (None, "string", 0.25)
    assert table.option.filter_option.filter_freq == 3
    assert keras.saving.serialize_keras_object(loaded) == config


def test_options_of_dynamic_tables_need_one():
    with pytest.raises(ValueError, match=r"table 't': key_dtype and option .* got vocabulary_size 5, wanted None"):
        TableConfig("t", 5, embedding_dim=2, key_dtype="string")
    with pytest.raises(ValueError, match="table 't': placement is 'gpu'"):
        TableConfig("t", embedding_dim=2, placement="gpu")


def test_the_layer_of_keras_rs_refuses_a_dynamic_table_by_the_layer_to_use():
    message = r"'keys' has vocabulary_size None.*lockstep.keras.DistributedEmbedding"
    with scope(), pytest.raises(ValueError, match=message):
        layer(cls=keras_rs.layers.DistributedEmbedding)({"f": IDS})


def compare(folder):
    """Returns the predictions of a model with static and of one with dynamic tables, and of the latter's files."""
    import lockstep

    def model(is_dynamic):
        start = keras.initializers.Constant(0.1)
        optimizers = {"a": keras.optimizers.Adagrad(0.2), "b": keras.optimizers.SGD(0.3)}
        tables = {
            name: TableConfig(
                name, None if is_dynamic else 20, embedding_dim=3, initializer=start, optimizer=o, combiner="sum"
            )
            for name, o in optimizers.items()
        }
        shapes = {"single": ("a", []), "many": ("a", [3]), "words": ("b", [2])}
        features = {f: FeatureConfig(f, tables[t], (None, *shape), (None, 3)) for f, (t, shape) in shapes.items()}
        ids = {f: keras.Input(shape, name=f, dtype="int64") for f, (_, shape) in shapes.items()}
        with embedding_scope():
            vectors = DistributedEmbedding(features)(ids)
        kernel = keras.initializers.RandomUniform(seed=3)
        joined = keras.layers.Concatenate()([vectors[f] for f in shapes])
        made = keras.Model(ids, keras.layers.Dense(1, kernel_initializer=kernel)(joined))
        made.compile(keras.optimizers.Adam(0.05), "mse")
        return made

    rng = np.random.default_rng(lockstep.rank())
    x = {"single": rng.integers(0, 20, 40), "many": rng.integers(0, 20, [40, 3]), "words": rng.integers(0, 20, [40, 2])}
    data = tf.data.Dataset.from_tensor_slices((x, rng.normal(size=[40, 1]).astype(np.float32))).batch(8)
    with scope():
        static, dynamic = model(False), model(True)
        for made in (static, dynamic):
            made.fit(data, epochs=2, verbose=0)
        dynamic.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
        for made in (static, dynamic, loaded):
            made.fit(data, verbose=0)
        lockstep.keras.export(dynamic, f"{folder}/served", verbose=False)
        predicted = [made.predict(data, verbose=0) for made in (static, dynamic, loaded)]
    stock = tf.saved_model.load(f"{folder}/served")
    return [*predicted, stock.serve({name: tf.constant(ids) for name, ids in x.items()}).numpy()]


@pytest.mark.workers
def test_two_workers_train_dynamic_tables_as_static_ones_and_save_and_serve_them(tmp_path):
    for static, *others in call_workers(compare, 2, str(tmp_path), timeout_s=300):
        for other in others:
            np.testing.assert_allclose(other, static, atol=1e-5)
