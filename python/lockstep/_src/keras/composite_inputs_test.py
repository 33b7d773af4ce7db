"""Tests that exports of models with ragged and sparse inputs serve numpy's results without this library."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras")
if not keras.__version__.startswith("3"):
    pytest.skip("models are of Keras 3", allow_module_level=True)

from lockstep.keras import DynamicEmbedding, export  # noqa: E402

DIM = 2
KEYS = np.array([1, 2, 3, 4, 5], np.int64)
ROWS = np.random.default_rng(3).normal(size=(5, DIM)).astype(np.float32)
# The last key of the last line has no row.
LISTS = [[1, 2], [], [3], [4, 4, 99]]
WORDS = [[b"2"], [b"3", b"none"], [], [b"1", b"1", b"5"]]
AGES = np.array([[0.5], [1.0], [2.0], [-1.0]], np.float32)

# A program that serves by all functions of both of TensorFlow's loaders. Its arguments are the folder, the components
# of the inputs by name, and the form of the inputs.
_SERVE = """
import json, sys
import numpy as np, tensorflow as tf
folder, fed, form = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
loaded = tf.saved_model.load(folder)
default = loaded.signatures["serving_default"]
specs = default.structured_input_signature[1]
fed = {name: tf.reshape(tf.constant(fed[name], spec.dtype), [-1 if n is None else n for n in spec.shape])
       for name, spec in specs.items()}
(two,) = default(**fed).values()
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    signature = tf.compat.v1.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
    (output,) = signature.outputs.values()
    one = session.run(output.name, {signature.inputs[name].name: value.numpy() for name, value in fed.items()})
np.testing.assert_array_equal(one, two.numpy())
if form == "ragged":
    inputs = {n: tf.RaggedTensor.from_row_splits(fed[n + "_values"], fed[n + "_row_splits"]) for n in ("ids", "words")}
else:
    parts = ("indices", "values", "dense_shape")
    inputs = {n: tf.SparseTensor(*(fed[f"{n}_{part}"] for part in parts)) for n in ("ids", "words")}
np.testing.assert_array_equal(loaded.serve({**inputs, "age": fed["age"]}), two)
broken = {"ragged": {"ids_row_splits": [0, 2, 2, 3, 9]}, "sparse": {"ids_values": [1]}}[form]
try:
    default(**{**fed, **{name: tf.constant(value, tf.int64) for name, value in broken.items()}})
except tf.errors.InvalidArgumentError:
    print(json.dumps([sorted(specs), two.numpy().tolist()]))
assert not [name for name in sys.modules if name.split(".")[0] in ("lockstep", "hybridbackend")]
"""


def _layers():
    ids = DynamicEmbedding(DIM, combiner="mean", name="of_ids")
    words = DynamicEmbedding(DIM, key_dtype="string", combiner="sum", name="of_words")
    return ids, words


def _fill(ids, words):
    ids.table.insert(KEYS, ROWS)
    words.table.insert([str(key).encode() for key in KEYS], 2 * ROWS)


def _declared(form):
    """Returns a functional model of lists of ids, lists of words and a number."""
    inputs = {
        "ids": keras.Input([None], dtype="int64", name="ids", **{form: True}),
        "words": keras.Input([None], dtype="string", name="words", **{form: True}),
        "age": keras.Input([1], name="age"),
    }
    layers = _layers()
    outputs = [layers[0](inputs["ids"]), layers[1](inputs["words"]), inputs["age"]]
    model = keras.Model(inputs, keras.layers.Concatenate()(outputs))
    _fill(*layers)
    return model


def _expected():
    rows = dict(zip(KEYS.tolist(), ROWS, strict=True))
    zero = np.zeros(DIM, np.float32)
    means = [np.mean([rows.get(key, zero) for key in keys] or [zero], axis=0) for keys in LISTS]
    sums = [np.sum([2 * rows[int(w)] if w != b"none" else zero for w in line] or [zero], axis=0) for line in WORDS]
    return np.concatenate([means, sums, AGES], axis=1)


def _inputs(form):
    ragged = {"ids": tf.ragged.constant(LISTS, tf.int64), "words": tf.ragged.constant(WORDS)}
    lists = ragged if form == "ragged" else {name: value.to_sparse() for name, value in ragged.items()}
    return {**lists, "age": tf.constant(AGES)}


def _components(inputs, form):
    parts = {"ragged": ("values", "row_splits"), "sparse": ("indices", "values", "dense_shape")}[form]
    fed = {f"{name}_{part}": getattr(inputs[name], part).numpy() for name in ("ids", "words") for part in parts}
    fed["words_values"] = np.char.decode(fed["words_values"].astype("S"))
    return {name: value.tolist() for name, value in {**fed, "age": AGES}.items()}


# Promise (deltas.md): exports with ragged and sparse inputs serve what `predict` returns.
@pytest.mark.parametrize("form", ["ragged", "sparse"])
def test_stock_tensorflow_serves_what_predict_returns(form, tmp_path):
    model, inputs = _declared(form), _inputs(form)
    np.testing.assert_allclose(model.predict(inputs, verbose=0), _expected(), rtol=1e-6)
    export(model, tmp_path / "model", verbose=False)
    fed = _components(inputs, form)
    command = [sys.executable, "-c", _SERVE, str(tmp_path / "model"), json.dumps(fed), form]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and done.stdout, done.stderr
    names, served = json.loads(done.stdout.splitlines()[-1])
    assert names == sorted(fed)
    np.testing.assert_allclose(served, _expected(), rtol=1e-6)
    np.testing.assert_allclose(model.predict(inputs, verbose=0), _expected(), rtol=1e-6)


class Undeclared(keras.Model):
    """A model whose inputs are not declared."""

    def __init__(self):
        super().__init__()
        self.ids, self.words = _layers()
        self.join = keras.layers.Concatenate()

    def call(self, inputs):
        return self.join([self.ids(inputs["ids"]), self.words(inputs["words"]), inputs["age"]])


# Promise (deltas.md): exports with ragged and sparse inputs serve what `predict` returns.
def test_a_subclass_says_the_form_of_its_inputs_or_is_refused(tmp_path, monkeypatch):
    model, inputs = Undeclared(), _inputs("ragged")
    model(inputs)
    _fill(model.ids, model.words)
    np.testing.assert_allclose(model.predict(inputs, verbose=0), _expected(), rtol=1e-6)
    with pytest.raises(ValueError, match="^export: layer 'of_ids' was called with ragged keys, but gets dense keys"):
        export(model, tmp_path / "refused", verbose=False)
    assert not (tmp_path / "refused").exists()
    signature = {
        "ids": tf.RaggedTensorSpec([None, None], tf.int64),
        "words": tf.RaggedTensorSpec([None, None], tf.string),
        "age": keras.InputSpec(shape=[None, 1], dtype="float32"),
    }
    export(model, tmp_path / "model", input_signature=[signature], verbose=False)

    def fails(archive, path, *args, **kwargs):
        (pathlib.Path(path) / "variables").mkdir(parents=True)
        (pathlib.Path(path) / "saved_model.pb").write_text("a part")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(tf.saved_model, "save", fails)
        export(model, tmp_path / "model", input_signature=[signature], verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_allclose(loaded.serve(inputs), _expected(), rtol=1e-6)
    fed = {"age": inputs["age"]}
    for name in ("ids", "words"):
        fed[f"{name}_values"], fed[f"{name}_row_splits"] = inputs[name].values, inputs[name].row_splits
    (served,) = loaded.signatures["serving_default"](**fed).values()
    np.testing.assert_allclose(served, _expected(), rtol=1e-6)
    # A dense signature that is given is not refused: without padding it serves the same.
    dense = [
        {
            "ids": tf.TensorSpec([None, 2], tf.int64),
            "words": tf.TensorSpec([None, 1], tf.string),
            "age": signature["age"],
        }
    ]
    export(model, tmp_path / "dense", input_signature=dense, verbose=False)
    two = {"ids": tf.constant([[1, 2]], tf.int64), "words": tf.constant([[b"2"]]), "age": tf.constant(AGES[:1])}
    loaded = tf.saved_model.load(str(tmp_path / "dense"))
    np.testing.assert_allclose(loaded.serve(two), _expected()[:1], rtol=1e-6)


@pytest.mark.parametrize("combiner", [None, "mean"])
def test_a_layer_that_has_had_dense_keys_too_takes_them(combiner, tmp_path):
    layer = DynamicEmbedding(DIM, combiner=combiner)
    model = keras.Sequential([keras.Input([2], dtype="int64"), layer])
    model(tf.constant([[1, 2]], tf.int64))
    layer.table.insert(KEYS, ROWS)
    layer(tf.ragged.constant(LISTS, tf.int64))
    export(model, tmp_path / "model", input_signature=None, verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    served = loaded.serve(tf.constant([[1, 2]], tf.int64))
    np.testing.assert_allclose(served, [ROWS[:2] if combiner is None else ROWS[:2].mean(0)], rtol=1e-6)


def test_lists_of_lists_have_several_row_splits(tmp_path):
    lists = tf.ragged.constant([[[1, 2], [3]], [], [[4]]], tf.int64)
    ids = keras.Input([None, None], dtype="int64", name="ids", ragged=True)
    layer = DynamicEmbedding(DIM)
    rows = layer(ids)
    sums = keras.layers.Lambda(lambda found: tf.reduce_sum(found.merge_dims(1, 2), 1), output_shape=(DIM,))
    model = keras.Model(ids, sums(rows))
    layer.table.insert(KEYS, ROWS)
    wanted = [ROWS[:3].sum(0), np.zeros(DIM), ROWS[3]]
    np.testing.assert_allclose(model(lists), wanted, rtol=1e-5)
    export(model, tmp_path / "model", verbose=False)
    default = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    splits = {f"ids_row_splits_{i}": split for i, split in enumerate(lists.nested_row_splits)}
    (served,) = default(ids_values=lists.flat_values, **splits).values()
    np.testing.assert_allclose(served, wanted, rtol=1e-5)


def test_arguments_of_other_formats_are_refused(tmp_path):
    with pytest.raises(TypeError, match="^export: got is_static; a model with ragged or sparse inputs takes only"):
        export(_declared("ragged"), tmp_path / "model", is_static=True)
