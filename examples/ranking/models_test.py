"""The models against numpy, their training in plain TensorFlow, and their serving signature's inputs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import criteo
import data
import inputs
import models
import movielens
import plain
import reader
import settings
from schema import EVAL, Schema

tf1 = tf.compat.v1


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Returns a small MovieLens-shaped folder, which has a list feature."""
    options = movielens.GeneratorOptions(ratings=20_000, users=200, items=300)
    return data.prepare_movielens(tmp_path_factory.mktemp("films"), options)


def _mlp(x, weights, prefix, layers, last_relu):
    for i in range(layers):
        x = x @ weights[f"{prefix}_{i}/kernel"] + weights[f"{prefix}_{i}/bias"]
        if last_relu or i + 1 < layers:
            x = np.maximum(x, 0)
    return x


def _vectors(schema, columns, weights, prefix):
    found = [weights[f"{prefix}_{name}"][columns[name]] for name in schema.categorical]
    for name in schema.lists:
        splits = columns[f"{name}/splits"]
        rows = [weights[f"{prefix}_{name}"][columns[name][a:b]] for a, b in zip(splits, splits[1:], strict=False)]
        found.append(np.stack([r.mean(0) if len(r) else np.zeros(r.shape[1]) for r in rows]))
    return found


def _dlrm(schema, columns, weights):
    numeric = np.stack([columns[name] for name in schema.numeric], 1)
    dense = _mlp(numeric, weights, "dlrm/bottom", 3, True)
    vectors = np.stack([dense, *_vectors(schema, columns, weights, "dlrm/embedding")], 1)
    products = [
        (vectors[:, i] * vectors[:, j]).sum(1, keepdims=True) for i in range(vectors.shape[1]) for j in range(i)
    ]
    return _mlp(np.concatenate([dense, *products], 1), weights, "dlrm/top", 3, False)[:, 0]


def _wide_and_deep(schema, columns, weights):
    numeric = np.stack([columns[name] for name in schema.numeric], 1)
    deep = np.concatenate([numeric, *_vectors(schema, columns, weights, "wide_and_deep/deep")], 1)
    wide = sum(_vectors(schema, columns, weights, "wide_and_deep/wide"))
    linear = _mlp(
        numeric, {k.replace("wide_numeric", "wide_0"): v for k, v in weights.items()}, "wide_and_deep/wide", 1, False
    )
    return (wide + linear + _mlp(deep, weights, "wide_and_deep/deep_layer", 3, False))[:, 0]


@pytest.mark.parametrize(("name", "oracle"), [("dlrm", _dlrm), ("wide_and_deep", _wide_and_deep)])
def test_model_computes_what_its_paper_says(films, name, oracle):
    schema = Schema.load(films)
    columns = reader.head(films, EVAL, 50)
    # One film without any genre.
    columns["genres"] = columns["genres"][columns["genres/splits"][1] :]
    columns["genres/splits"] = np.maximum(columns["genres/splits"] - columns["genres/splits"][1], 0)
    with tf.Graph().as_default(), tf1.Session() as session:
        features, feeds = inputs.placeholders(schema)
        logits = models.MODELS[name](features, schema, 4)
        session.run(tf1.global_variables_initializer())
        # Biases start at zero. Give them values, so that their position matters.
        for i, variable in enumerate(tf1.global_variables()):
            if "bias" in variable.name:
                session.run(variable.assign(np.full(variable.shape, 0.01 * (i + 1), np.float32)))
        weights = {v.op.name: session.run(v).astype(np.float64) for v in tf1.global_variables()}
        got = session.run(logits, inputs.feed(feeds, columns))
    assert got.shape == (50,)
    np.testing.assert_allclose(got, oracle(schema, columns, weights), rtol=1e-4, atol=1e-5)


def test_initial_values_do_not_depend_on_what_else_is_in_the_graph(films):
    schema = Schema.load(films)
    values = []
    for noise in (0, 3):
        with tf.Graph().as_default(), tf1.Session() as session:
            for _ in range(noise):
                tf.constant(0)
            features, _ = inputs.placeholders(schema)
            models.dlrm(features, schema, 4)
            session.run(tf1.global_variables_initializer())
            values.append({v.op.name: session.run(v) for v in tf1.global_variables()})
    assert all(np.array_equal(values[0][name], values[1][name]) for name in values[0])
    tables = [values[0][f"dlrm/embedding_{name}"] for name in ("gender", "occupation")]
    assert not np.array_equal(tables[0][0], tables[1][0])


@pytest.mark.parametrize("model", models.MODELS)
def test_plain_training_learns(films, model):
    flags = settings.parser("").parse_args(["--model", model, "--batch-size", "512", "--epochs", "8"])
    result = plain.train(flags, films)
    assert result["steps"] == 35 * 8
    assert result["auc"] > 0.6
    assert len(result["scores"]) == 2000


def test_plain_training_learns_criteo_shaped_data(tmp_path):
    options = criteo.GeneratorOptions(train_rows=65_536, eval_rows=8192, max_table_rows=200)
    criteo.generate(tmp_path / "made", options)
    flags = settings.parser("").parse_args(["--batch-size", "1024", "--model", "wide_and_deep"])
    assert plain.train(flags, tmp_path / "made")["auc"] > 0.7


def test_serialized_examples_give_the_features_back(films):
    schema = Schema.load(films)
    columns = reader.head(films, EVAL, 20)
    with tf.Graph().as_default(), tf1.Session() as session:
        parsed = inputs.parse_examples(tf.constant(inputs.serialize_examples(columns, schema)), schema)
        got = session.run(parsed)
    for name in (*schema.numeric, *schema.categorical):
        np.testing.assert_array_equal(got[name], columns[name], err_msg=name)
    np.testing.assert_array_equal(got["genres"].values, columns["genres"])
    lengths = np.bincount(got["genres"].indices[:, 0], minlength=20)
    np.testing.assert_array_equal(lengths, np.diff(columns["genres/splits"]))


def test_a_batch_larger_than_the_data_is_refused(films):
    flags = settings.parser("").parse_args(["--batch-size", "100000"])
    with pytest.raises(ValueError, match="18000 training rows do not fill a batch of 100000"):
        settings.Plan.of(flags, Schema.load(films))
