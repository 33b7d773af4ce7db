"""Tests of Keras 3 models with dynamic tables on workers that share the tables."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables import dynamic
from lockstep._src.tables.dynamic.workers_test import DIM, STEPS, keys_of, words
from lockstep.testing import call_workers

if not getattr(tf.keras, "__version__", "2").startswith("3"):
    pytest.skip("the layer is one of Keras 3", allow_module_level=True)

from lockstep.keras import DynamicEmbedding, export  # noqa: E402

pytestmark = pytest.mark.workers


def train_scaled():
    """Returns rows and the loss scale after each of two steps; in the first, one row's gradient is infinite."""
    with embedding_scope():
        layer = DynamicEmbedding(DIM, "ones")
        layer.build()
        optimizer = tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.SGD(0.5), initial_scale=8.0)
        optimizer.build(layer.trainable_variables)
        keys = tf.constant([0, 1, 2, 3, 4, 5] if context.rank == 0 else [100], tf.int64)

        @tf.function
        def step(factor):
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(tf.reduce_sum(layer(keys)) * factor)
            optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)

        after = []
        for factor in (1.0 if context.rank == 0 else np.inf, 1.0):
            step(tf.constant(factor))
            after.append((layer.table.export().values.numpy(), float(optimizer.dynamic_scale)))
        return after


def keras_model():
    """Returns a model with a table of numbers and one of words, and a function for this process's part of them."""
    keras = tf.keras
    option = dynamic.EmbeddingVariableOption(filter_option=dynamic.CounterFilter(2), record_frequency=True)
    inputs = [keras.Input((4,), dtype=key_dtype) for key_dtype in ("int64", "string")]
    layers = [DynamicEmbedding(DIM, "ones", i.dtype, "sum", option, name=f"of_{i.dtype}") for i in inputs]
    model = keras.Model(inputs, keras.layers.Add()([layer(i) for layer, i in zip(layers, inputs, strict=True)]))
    model.compile(keras.optimizers.Adagrad(0.1, name="adagrad"), "mse")
    return model, lambda: held_by(model)


def held_by(model):
    """Returns, for each table of a model, rows, slots and counts by key, and how many keys are not admitted yet."""
    parts = []
    for table in (model.get_layer(f"of_{key_dtype}").table for key_dtype in ("int64", "string")):
        keys, *rest = table.export()
        rest += table.export_slots("adagrad/accumulator")
        rows = {key: [part[i].numpy().tolist() for part in rest] for i, key in enumerate(keys.numpy().tolist())}
        parts.append((rows, int(table.candidate_count())))
    return parts


FILES = ("model.weights.h5", "model.keras")


def save_by_keras(folder):
    """Returns this worker's part of the tables of a model and of a copy with its weights, and the files."""
    with scope():
        model, held = keras_model()
        for step in range(3):
            keys = tf.constant(np.abs(keys_of(step, context.rank)))
            model.train_on_batch([keys, words(keys)], np.zeros([6, DIM]))
        with pytest.raises(NotImplementedError, match="tf.train.Checkpoint.*job of 2 workers.*save_weights on all"):
            tf.train.Checkpoint(model=model).write(f"{folder}/object")
        weights, whole = (f"{folder}/{file}" for file in FILES)
        # Only worker 0 writes; if it cannot, all workers get the error.
        with pytest.raises(Exception, match="missing") as failed:
            model.save_weights(f"{folder}/missing/file/model.weights.h5")
        assert context.rank == 0 or str(failed.value).startswith("save_weights: worker 0 failed: ")
        model.save_weights(weights)
        model.save(whole)
        again, held_again = keras_model()
        again.load_weights(weights)
        return held(), held_again(), [Path(path).read_bytes() for path in (weights, whole)]


def train_layers(ranks):
    """Trains a model of Keras 3 on the batches of `ranks`; returns this process's tables, predictions and export."""
    batches = [np.concatenate([keys_of(step, rank) for rank in ranks]) // 10**15 for step in range(STEPS)]
    with scope(), embedding_scope():
        number, text = (
            tf.keras.Input((2,), dtype="int64", name="number"),
            tf.keras.Input((2,), dtype="string", name="text"),
        )
        drawn = tf.keras.initializers.RandomUniform(1.0, 2.0, seed=3)
        layers = [DynamicEmbedding(DIM, drawn, name="numbers"), DynamicEmbedding(DIM, "zeros", "string", "mean")]
        joined = tf.keras.layers.Concatenate()([tf.keras.layers.Flatten()(layers[0](number)), layers[1](text)])
        outputs = tf.keras.layers.Dense(1, kernel_initializer="ones")(joined)
        model = tf.keras.Model({"number": number, "text": text}, outputs)
        model.compile(tf.keras.optimizers.Adagrad(0.3), "mse")
        fed = [{"number": b[:, :2], "text": np.char.mod("word %d", b[:, 2:])} for b in batches]
        for x, b in zip(fed, batches, strict=True):
            x = {"number": x["number"], "text": tf.constant(x["text"].tolist())}
            model.fit(tf.data.Dataset.from_tensors((x, b[:, :1] % 3)), verbose=0)
        seen = {"number": tf.constant([[0, 1], [8, 99]], tf.int64), "text": tf.constant([["word 1", "no"]] * 2)}
        predicted = model.predict(tf.data.Dataset.from_tensors(seen), verbose=0)
        squares = model.evaluate(tf.data.Dataset.from_tensors((seen, tf.zeros([2, 1]))), verbose=0)
        np.testing.assert_allclose(squares, np.mean(np.square(predicted)), rtol=1e-5)
        with tempfile.TemporaryDirectory() as folder:
            export(model, folder, verbose=False)
            served = None if context.rank else serve(folder, seen)
    return [[column.numpy() for column in layer.table.export()[:2]] for layer in layers], predicted, served


def serve(folder, inputs):
    """Returns the results of a SavedModel, and the types of its operations."""
    read = saved_model_pb2.SavedModel.FromString(Path(folder, "saved_model.pb").read_bytes())
    graph = read.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    (outputs,) = tf.saved_model.load(folder).signatures["serving_default"](**inputs).values()
    return outputs.numpy(), {node.op for node in nodes}


def on_worker(folder):
    context.ensure_initialized()
    return train_scaled(), save_by_keras(folder), train_layers([context.rank])


@functools.cache
def on_workers():
    with tempfile.TemporaryDirectory() as folder:
        return call_workers(on_worker, 2, folder, timeout_s=240)


def test_workers_skip_a_step_together_where_the_gradient_of_one_is_not_finite():
    scaled = [of_scale for of_scale, *_ in on_workers()]
    for after in scaled:
        assert [scale for _, scale in after] == [4.0, 4.0]
        assert all(len(rows) > 0 for rows, _ in after)
        np.testing.assert_array_equal(after[0][0], 1.0)
        # The gradient is the mean over the workers.
        np.testing.assert_allclose(after[1][0], 0.75)


@pytest.mark.parametrize("file", FILES)
def test_what_two_workers_save_is_whole_in_a_file_of_keras(file, tmp_path):
    saved = [of_saving for _, of_saving, _ in on_workers()]
    path = tmp_path / file
    path.write_bytes(saved[0][-1][FILES.index(file)])
    if file == "model.keras":
        model = tf.keras.models.load_model(path)
    else:
        model, _ = keras_model()
        model.load_weights(path)
    for i, (rows, waiting) in enumerate(held_by(model)):
        parts = [before[i] for before, *_ in saved]
        assert [after[i] for _, after, _ in saved] == parts, "loaded by as many workers"
        assert not parts[0][0].keys() & parts[1][0].keys()
        assert rows == {**parts[0][0], **parts[1][0]} and len(rows) > 5
        assert waiting == parts[0][1] + parts[1][1] > 0


def test_layers_of_two_workers_train_predict_and_export_what_those_of_one_do():
    parts = [of_layers for *_, of_layers in on_workers()]
    tables, predicted, (served, kinds) = train_layers([0, 1])
    for i, (keys, rows) in enumerate(tables):
        held = [part[0][i] for part in parts]
        assert all(len(of_worker[0]) for of_worker in held)
        got = {key: row for of_worker in held for key, row in zip(*of_worker, strict=True)}
        assert sum(len(of_worker[0]) for of_worker in held) == len(got) == len(keys)
        np.testing.assert_allclose([got[key] for key in keys], rows, rtol=1e-5, atol=1e-6)
    for _, of_worker, of_export in parts:
        np.testing.assert_allclose(of_worker, predicted, rtol=1e-5)
        for values, ops in [of_export] if of_export else []:
            np.testing.assert_allclose(values, predicted, rtol=1e-5)
            assert not any(op.startswith("Lockstep") for op in ops), ops
    np.testing.assert_allclose(served, predicted, rtol=1e-5)
    assert "LookupTableFindV2" in kinds and not any(op.startswith("Lockstep") for op in kinds), kinds
