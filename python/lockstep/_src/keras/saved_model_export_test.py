"""Tests that SavedModels of models with dynamic tables give numpy's results in a process without this library."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras")
if not keras.__version__.startswith("3"):
    pytest.skip("models are of Keras 3", allow_module_level=True)

import lockstep.keras  # noqa: E402
from lockstep._src.tables import dynamic  # noqa: E402
from lockstep.keras import DynamicEmbedding, LazyAdam, export  # noqa: E402
from lockstep.testing.tables import remove  # noqa: E402

DIM = 3
KEYS = np.array([5, -(2**62), 7], np.int64)
ROWS = np.random.default_rng(1).normal(size=(3, DIM)).astype(np.float32)
USERS = np.array([[5], [-(2**62)], [10**15]])  # the last key is in no table
WORDS = np.array([[b"5", b"7"], [b"7", b"none"], [b"", b"5"]])

# A program that uses both of TensorFlow's loaders.
_SERVE = f"""
import sys
import numpy as np, tensorflow as tf
inputs = {{"user": tf.constant({USERS.tolist()}, tf.int64), "words": tf.constant({WORDS.tolist()})}}
for folder in sys.argv[1:]:
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    (two,) = serve(**inputs).values()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], folder)
        signature = meta.signature_def["serving_default"]
        fed = {{signature.inputs[name].name: value.numpy() for name, value in inputs.items()}}
        (output,) = signature.outputs.values()
        one = session.run(output.name, fed)
    np.testing.assert_array_equal(one, two.numpy())
    print(folder, *two.numpy().ravel())
assert not [name for name in sys.modules if name.split(".")[0] in ("lockstep", "hybridbackend")]
"""


def made(filled=True):
    """Returns a model of users' rows and of sums of their words' rows; and of both from tables that draw new rows."""
    option = dynamic.EmbeddingVariableOption(
        filter_option=dynamic.CBFFilter(2, 1000, 0.01),
        init_option=dynamic.InitializerOption(keras.initializers.Ones(), default_value_no_permission=0.25),
        evict_option=(dynamic.GlobalStepEvict(1000), dynamic.BudgetEvict(max_keys=1000)),
    )
    user, words = keras.Input((1,), dtype="int64", name="user"), keras.Input((2,), dtype="string", name="words")
    users = DynamicEmbedding(DIM, keras.initializers.Constant(0.5), name="users")
    pooled = DynamicEmbedding(DIM, key_dtype="string", combiner="sum", option=option, name="texts")
    drawn = DynamicEmbedding(DIM, name="drawn")
    means = DynamicEmbedding(DIM, key_dtype="string", combiner="mean", name="means")
    found = [users(user), pooled(words), drawn(user), means(words)]
    outputs = keras.layers.Concatenate()([keras.layers.Reshape([DIM])(rows) for rows in found])
    model = keras.Model({"user": user, "words": words}, outputs)
    if filled:
        for layer in (users, drawn):
            layer.table.insert(KEYS, ROWS)
        for layer in (pooled, means):
            layer.table.insert([b"5", b"none", b"7"], 2 * ROWS)
            remove(layer.table, [b"none"])
    return model


def expected():
    rows = dict(zip(KEYS.tolist(), ROWS, strict=True))
    texts = {b"5": 2 * ROWS[0], b"7": 2 * ROWS[2]}

    def of_users(default):
        return [rows.get(user, np.full(DIM, default)) for user in USERS[:, 0].tolist()]

    def of_words(default):
        return [sum(texts.get(word, np.full(DIM, default)) for word in line) for line in WORDS.tolist()]

    return np.concatenate([of_users(0.5), of_words(0.25), of_users(0.0), np.divide(of_words(0.0), 2)], axis=1)


def test_stock_tensorflow_serves_the_rows_of_admitted_keys(tmp_path):
    model = made()
    model.compile("sgd", "mse")
    inputs = {"user": tf.constant(USERS), "words": tf.constant(WORDS)}
    before = model.predict(inputs, verbose=0)
    np.testing.assert_allclose(before, expected(), rtol=1e-6)
    targets = np.zeros(before.shape)
    assert model.evaluate(inputs, targets, verbose=0) == pytest.approx(np.mean(np.square(expected())), rel=1e-5)
    np.testing.assert_array_equal(model(inputs, training=False), before)
    counts = [int(model.get_layer(name).table.total_count()) for name in ("users", "texts", "drawn", "means")]
    assert counts == [3, 2, 3, 2]
    export(model, tmp_path / "full", verbose=False)
    export(made(filled=False), tmp_path / "empty", verbose=False)
    command = [sys.executable, "-c", _SERVE, str(tmp_path / "full"), str(tmp_path / "empty")]
    served = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert served.returncode == 0, served.stderr
    full, empty = (np.array(line.split()[1:], np.float64).reshape(3, -1) for line in served.stdout.splitlines())
    np.testing.assert_allclose(full, expected(), rtol=1e-6)
    np.testing.assert_allclose(empty, np.repeat([[0.5, 0.5, 0.0, 0.0]], 3, axis=0).repeat(DIM, axis=1), rtol=1e-6)
    # The model itself is unchanged: it adds new keys, and evaluation sees them.
    np.testing.assert_array_equal(model.predict(inputs, verbose=0), before)
    model.train_on_batch(inputs, targets)
    assert 10**15 in model.get_layer("users").table.export().keys.numpy()
    assert not np.allclose(model.predict(inputs, verbose=0)[:2], before[:2])


def test_a_file_of_keras_has_the_tables(tmp_path):
    model = made()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    option, again = (each.get_layer("texts").option for each in (model, loaded))
    assert again.init_option.initializer.get_config() == option.init_option.initializer.get_config()
    assert dataclasses.replace(again, init_option=option.init_option) == option
    inputs = {"user": tf.constant(USERS), "words": tf.constant(WORDS)}
    np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), model.predict(inputs, verbose=0))


# A program that imports one module of this library, and reads none of its lazy names before the model is loaded.
_LOAD = """
import sys
import lockstep.keras
import keras, numpy as np
names = dir(lockstep.keras)
assert set(lockstep.keras.__all__) <= set(names), names
model = keras.models.load_model(sys.argv[1])
inputs = dict(np.load(sys.argv[2]))
print(type(model.optimizer).__name__, *model.predict(inputs, verbose=0).ravel())
"""


@pytest.mark.parametrize("of_hybridbackend", [False, True])
def test_a_program_that_imports_the_module_loads_the_file(of_hybridbackend, tmp_path):
    user = keras.Input((1,), dtype="int64", name="user")
    layer = DynamicEmbedding(DIM, name="users")
    outputs = keras.layers.Flatten()(layer(user))
    # A model of HybridBackend's API is saved as one of Keras' own classes.
    model = (lockstep.keras.Model if of_hybridbackend else keras.Model)({"user": user}, outputs)
    layer.table.insert(KEYS, ROWS)
    model.compile(LazyAdam(), "mse")
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "inputs.npz", user=USERS)
    command = [sys.executable, "-c", _LOAD, str(tmp_path / "model.keras"), str(tmp_path / "inputs.npz")]
    loaded = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert loaded.returncode == 0, loaded.stderr
    optimizer, *predicted = loaded.stdout.split()[-1 - 3 * DIM :]
    assert optimizer == "LazyAdam"
    np.testing.assert_allclose(np.array(predicted, float), [*ROWS[0], *ROWS[1], *[0.0] * DIM], rtol=1e-6)


@pytest.mark.parametrize(
    "write",
    [lambda model, folder: model.export(folder), lambda model, folder: tf.saved_model.save(model, folder)],
    ids=["Model.export", "saved_model.save"],
)
def test_other_ways_say_which_is_the_way(tmp_path, write):
    with pytest.raises(
        NotImplementedError, match=r"table '\w+/embeddings'.*lockstep\.keras\.export writes a SavedModel"
    ):
        write(made(), str(tmp_path / "model"))


def test_another_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="format is 'onnx'"):
        export(made(), tmp_path / "model", format="onnx")
