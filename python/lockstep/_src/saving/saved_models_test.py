"""Exports of one process; stock TensorFlow reads them in a process that never imports this library."""

import os
import resource
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep._src.engine.context import context
from lockstep._src.saving import saved_models as export_module
from lockstep._src.saving.saved_models import export, export_all
from lockstep._src.scope import embedding_scope, scope

TABLE = np.random.default_rng(5).normal(size=(50, 4)).astype(np.float32)
BIAS = np.float32(0.25)

# Loads a SavedModel with both of TensorFlow's loaders, feeds examples (float 'x' [1], ints 'ids'), prints the scores.
_SERVE = """
import sys
import numpy as np, tensorflow as tf
examples = []
for x, ids in [(1.0, [3, 4]), (2.0, [49]), (-1.0, [])]:
    feature = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=[x])),
               "ids": tf.train.Feature(int64_list=tf.train.Int64List(value=ids))}
    examples.append(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
two = serve(input=tf.constant(examples))["scores"].numpy()
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    meta = tf.compat.v1.saved_model.load(session, ["serve"], sys.argv[1])
    signature = meta.signature_def["serving_default"]
    one = session.run(signature.outputs["scores"].name, {signature.inputs["input"].name: examples})
np.testing.assert_array_equal(one, two)
assert not [name for name in sys.modules if name.split(".")[0] in ("lockstep", "hybridbackend")]
print(*one)
"""
WANTED = [
    1.0 + TABLE[3].sum() + TABLE[4].sum() + BIAS,
    2.0 + TABLE[49].sum() + BIAS,
    -1.0 + BIAS,
]


def model(x, ids):
    table = tf.get_variable("table", TABLE.shape, initializer=tf.constant_initializer(TABLE), use_resource=True)
    bias = tf.get_variable("bias", [], initializer=tf.constant_initializer(BIAS), use_resource=True)
    pooled = tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")
    padded = tf.pad(pooled, [[0, tf.shape(x)[0] - tf.shape(pooled)[0]], [0, 0]])  # trailing rows without ids
    return tf.reshape(x, [-1]) + tf.reduce_sum(padded, 1) + bias


def serialized_signature():
    serialized = tf.placeholder(tf.string, [None], name="input")
    spec = {"x": tf.io.FixedLenFeature([1], tf.float32), "ids": tf.io.VarLenFeature(tf.int64)}
    features = tf.io.parse_example(serialized, spec)
    scores = model(features["x"], features["ids"])
    return tf.saved_model.predict_signature_def({"input": serialized}, {"scores": scores})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Creates a checkpoint of the model, with a slot of an optimizer, like a checkpoint of training."""
    with tf.Graph().as_default(), tf.Session() as session:
        model(tf.zeros([1]), tf.sparse.from_dense(tf.constant([[1]], tf.int64)))
        tf.get_variable("table/Adagrad", TABLE.shape)
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(tmp_path_factory.mktemp("checkpoint") / "model.ckpt"))


def serve(directory):
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", _SERVE, directory],
        check=True,
        env=environ,
        timeout=500,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [float(score) for score in done.stdout.split()]


def tensors_of(directory):
    reader = tf.train.load_checkpoint(os.path.join(directory, "variables", "variables"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_stock_tensorflow_serves_it(checkpoint, tmp_path):
    started = int(time.time())
    directory = export(tmp_path, checkpoint, serialized_signature)
    assert type(directory) is str and os.path.dirname(directory) == str(tmp_path)
    assert started <= int(os.path.basename(directory)) <= time.time()
    assert os.listdir(tmp_path) == [os.path.basename(directory)]
    np.testing.assert_allclose(serve(directory), WANTED, rtol=1e-6)
    # Variables that only training needs are not exported.
    assert sorted(tensors_of(directory)) == ["bias", "table"]


# Promise (hybridbackend.md): it works; a `str` (HybridBackend: `assets_extra` fails; `export` returns bytes).
def test_program_of_the_documents(checkpoint, tmp_path):
    numeric_fields, categorical_fields = ["x"], ["ids"]

    def my_model(inputs, training):
        assert not training
        return {"scores": model(tf.cast(inputs["x"], tf.float32), inputs["ids"])}

    def _on_export():
        example_spec = {}
        for f in numeric_fields:
            example_spec[f] = tf.io.FixedLenFeature([1], dtype=tf.int64)
        for f in categorical_fields:
            example_spec[f] = tf.io.VarLenFeature(dtype=tf.int64)

        serialized_examples = tf.placeholder(dtype=tf.string, shape=[None], name="input")
        inputs = tf.io.parse_example(serialized_examples, example_spec)

        outputs = my_model(inputs, training=False)
        return tf.saved_model.predict_signature_def(inputs, outputs)

    checkpoint_path = tf.train.latest_checkpoint(os.path.dirname(checkpoint))
    directory = export(str(tmp_path), checkpoint_path, _on_export)
    ids = tf.SparseTensorValue([[0, 0], [0, 1], [1, 0]], np.array([3, 4, 49], np.int64), [3, 2])
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(session, ["serve"], directory).signature_def["serving_default"]
        coo = signature.inputs["ids"].coo_sparse
        feeds = {
            signature.inputs["x"].name: [[1], [2], [-1]],
            coo.indices_tensor_name: ids.indices,
            coo.values_tensor_name: ids.values,
            coo.dense_shape_tensor_name: ids.dense_shape,
        }
        scores = session.run(signature.outputs["scores"].name, feeds)
    np.testing.assert_allclose(scores, WANTED, rtol=1e-6)


@pytest.mark.parametrize("partitions", [1, 3])
def test_variables_of_a_partitioner_are_read_as_slices(checkpoint, tmp_path, partitions):
    def signature():
        table = tf.get_variable(
            "table", TABLE.shape, partitioner=tf.fixed_size_partitioner(partitions), use_resource=True
        )
        ids = tf.placeholder(tf.int64, [None], name="ids")
        rows = tf.nn.embedding_lookup(table, ids, partition_strategy="div")
        return tf.saved_model.predict_signature_def({"ids": ids}, {"rows": rows})

    directory = export(tmp_path, checkpoint, signature)
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.load(session, ["serve"], directory).signature_def["serving_default"]
        rows = session.run(loaded.outputs["rows"].name, {loaded.inputs["ids"].name: [0, 17, 49]})
    np.testing.assert_array_equal(rows, TABLE[[0, 17, 49]])


def test_graph_is_fresh_and_built_for_inference(checkpoint, tmp_path):
    seen = []

    def signature():
        seen.append((context.options.mode, context.options.sharding, tf.get_default_graph()))
        return serialized_signature()

    with tf.Graph().as_default() as outer, context.scope(sharding=True):
        tf.get_variable("table", [1])  # has another shape than in training's graph
        export(tmp_path, checkpoint, signature)
        assert context.options.sharding
    ((mode, sharding, graph),) = seen
    assert (mode, sharding) == ("infer", False) and graph is not outer
    assert context.options.mode == "train"


# Promise (hybridbackend.md): every export is built for prediction; its mode chooses tag and signature.
@pytest.mark.parametrize(
    ("mode", "name"), [("infer", "serve"), ("predict", "serve"), ("train", "train"), ("eval", "eval"), ("test", "eval")]
)
def test_mode_chooses_tag_and_signature_of_a_model_for_inference(checkpoint, tmp_path, mode, name):
    options = []

    def signature():
        with scope(), embedding_scope():
            options.append(context.options.mode)
            table = tf.get_variable("table", TABLE.shape)
        with scope(mode="eval"), embedding_scope():
            tf.get_variable("table/Adagrad", TABLE.shape)
        ids = tf.placeholder(tf.int64, [None])
        return tf.saved_model.predict_signature_def({"ids": ids}, {"rows": tf.nn.embedding_lookup(table, ids)})

    with scope():
        directory = export(tmp_path, checkpoint, signature, mode=mode)
    assert options == ["infer"]
    with tf.Graph().as_default(), tf.Session() as session:
        signatures = tf.saved_model.load(session, [name], directory).signature_def
        served = signatures["serving_default" if name == "serve" else name]
        rows = session.run(served.outputs["rows"].name, {served.inputs["ids"].name: [49, 0]})
    np.testing.assert_array_equal(rows, TABLE[[49, 0]])


def test_several_signatures_tables_assets_and_an_operation_at_loading(checkpoint, tmp_path):
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("cat\ndog\n")
    extra = tmp_path / "warmup.bin"
    extra.write_bytes(b"\0\1")

    def signatures():
        scores = serialized_signature()
        words = tf.placeholder(tf.string, [None], name="words")
        initializer = tf.lookup.TextFileInitializer(
            str(vocabulary),
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        ids = tf.lookup.StaticHashTable(initializer, -1).lookup(words)
        loaded = tf.get_local_variable("loaded", [], initializer=tf.zeros_initializer(), use_resource=True)
        main_op = tf.group(tf.tables_initializer(), loaded.assign(7.0))
        counted = tf.identity(loaded)
        return {
            "serving_default": scores,
            "words": tf.saved_model.predict_signature_def({"words": words}, {"ids": ids, "loaded": counted}),
        }, main_op

    directory = export(tmp_path / "out", checkpoint, signatures, assets_extra={"a/warmup": str(extra)})
    vocabulary.unlink()
    assert (tmp_path / "out" / os.path.basename(directory) / "assets.extra" / "a" / "warmup").read_bytes() == b"\0\1"
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.load(session, ["serve"], directory).signature_def
        assert {"serving_default", "words"} <= set(loaded)
        outputs = {name: info.name for name, info in loaded["words"].outputs.items()}
        got = session.run(outputs, {loaded["words"].inputs["words"].name: ["dog", "cow", "cat"]})
    assert list(got["ids"]) == [1, -1, 0] and got["loaded"] == 7


def test_model_without_variables(checkpoint, tmp_path):
    def signature():
        x = tf.placeholder(tf.float32, [None], name="x")
        return tf.saved_model.predict_signature_def({"x": x}, {"y": 2 * x})

    directory = export(tmp_path, checkpoint, signature, as_text=True)
    assert "saved_model.pbtxt" in os.listdir(directory)
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(session, ["serve"], directory).signature_def["serving_default"]
        assert list(session.run(signature.outputs["y"].name, {signature.inputs["x"].name: [3]})) == [6]


@pytest.mark.parametrize("clear_devices", [True, False])
def test_devices_are_forgotten_or_kept(checkpoint, tmp_path, clear_devices):
    def signature():
        with tf.device("/device:CPU:0"):
            x = tf.placeholder(tf.float32, [None], name="x")
        return tf.saved_model.predict_signature_def({"x": x}, {"y": x + 1})

    directory = export(tmp_path, checkpoint, signature, clear_devices=clear_devices)
    with tf.Graph().as_default(), tf.Session() as session:
        graph_def = tf.saved_model.load(session, ["serve"], directory).graph_def
    assert any(node.device for node in graph_def.node if node.name == "x") != clear_devices


def signatures_of_modes(*names):
    def build():
        scores = serialized_signature()
        ran = tf.get_local_variable("ran", [], initializer=tf.zeros_initializer(), use_resource=True)
        return {name: scores for name in names}, tf.group(ran.assign(1.0), tf.tables_initializer())

    return build


@pytest.mark.parametrize(
    ("modes", "tags", "kept"),
    [
        (None, ["eval", "serve"], ["eval", "mine", "serving_default"]),
        (["infer"], ["serve"], ["mine", "serving_default"]),
        (["train", "test"], ["eval"], ["eval", "mine"]),
    ],
)
def test_all_modes_are_exported_together(checkpoint, tmp_path, modes, tags, kept):
    build = signatures_of_modes("serving_default", "eval", "mine")
    directory = export_all(tmp_path / "out", checkpoint, build, modes=modes)
    with tf.Graph().as_default(), tf.Session() as session:
        meta = tf.saved_model.load(session, tags, directory)
        assert sorted(meta.meta_info_def.tags) == tags
        assert sorted(name for name in meta.signature_def if not name.startswith("__")) == kept
        assert session.run("ran/Read/ReadVariableOp:0") == 1
    np.testing.assert_array_equal(tensors_of(directory)["table"], TABLE)


def test_export_of_all_modes_refuses_signatures_without_a_mode(checkpoint, tmp_path):
    build = signatures_of_modes("train", "mine")
    with pytest.raises(ValueError, match=r"are \['mine', 'train'\], wanted one of \['serving_default'\]"):
        export_all(tmp_path / "out", checkpoint, build, modes=["infer"])
    with pytest.raises(ValueError, match="mode is 'all'"):
        export_all(tmp_path / "out", checkpoint, build, modes=["all"])
    with pytest.raises(TypeError, match="wanted a dict of name to SignatureDef"):
        export_all(tmp_path / "out", checkpoint, serialized_signature)
    assert not (tmp_path / "out").exists()


def test_two_exports_in_one_second_both_stay(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module.time, "time", lambda: 1234.5)
    directories = [export(tmp_path, checkpoint, serialized_signature) for _ in range(2)]
    assert [os.path.basename(directory) for directory in directories] == ["1234", "1235"]


def test_only_the_chief_exports(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(type(context), "rank", 1)
    assert export(tmp_path / "out", checkpoint, serialized_signature) is None
    assert not (tmp_path / "out").exists()


def refused(error, message, tmp_path, checkpoint, signature=serialized_signature, **arguments):
    with pytest.raises(error, match=message):
        export(tmp_path / "out", checkpoint, signature, **arguments)
    assert not (tmp_path / "out").exists() or not os.listdir(tmp_path / "out")


# Promise (hybridbackend.md): an error that names them (HybridBackend, a wrong result: an export without checkpoint, or
# of one that lacks a variable, succeeds).
def test_missing_checkpoint_is_refused(checkpoint, tmp_path):
    refused(ValueError, "checkpoint '/nowhere/model.ckpt-3' does not exist", tmp_path, "/nowhere/model.ckpt-3")
    refused(ValueError, "checkpoint .* does not exist", tmp_path, os.path.dirname(checkpoint))
    refused(ValueError, "latest_checkpoint found no checkpoint", tmp_path, None)


# Promise (hybridbackend.md): an error that names them (HybridBackend, a wrong result: an export without checkpoint, or
# of one that lacks a variable, succeeds).
def test_missing_and_different_variables_of_the_checkpoint_are_named(checkpoint, tmp_path):
    def signature():
        tf.get_variable("user/table", [5, 4], use_resource=True)
        tf.get_variable("table", [50, 8], use_resource=True)
        return_value = tf.get_variable("bias", [], tf.float64, use_resource=True)
        return tf.saved_model.predict_signature_def({"x": tf.placeholder(tf.float32)}, {"y": return_value})

    message = (
        r"user/table is missing; table is float32\[50, 4\], the model has float32\[50, 8\]; "
        r"bias is float32\[\], the model has float64\[\]"
    )
    refused(ValueError, message, tmp_path, checkpoint, signature)


def test_failure_while_writing_leaves_nothing(checkpoint, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(export_module.bundle, "_copy_data", fail)
    refused(OSError, "disk full", tmp_path, checkpoint)


@pytest.mark.parametrize("destination", ["/etc/a", "../a", "a/../../b", "."])
def test_assets_outside_of_the_export_are_refused(checkpoint, tmp_path, destination):
    refused(ValueError, "assets_extra has", tmp_path, checkpoint, assets_extra={destination: checkpoint + ".index"})


def test_missing_asset_is_refused(checkpoint, tmp_path):
    refused(FileNotFoundError, "'/no/file', which is not a file", tmp_path, checkpoint, assets_extra={"a": "/no/file"})


@pytest.mark.parametrize("returned", [None, {}, {"a": 1}, ("a", "b")])
def test_results_that_are_no_signatures_are_refused(checkpoint, tmp_path, returned):
    refused(TypeError, "signature_def_fn returned", tmp_path, checkpoint, lambda: returned)


def test_unknown_mode_is_refused(checkpoint, tmp_path):
    refused(ValueError, "mode is 'serve', wanted one of 'infer'", tmp_path, checkpoint, mode="serve")


def test_an_export_that_cannot_be_written_is_an_error_that_sessions_raise(checkpoint, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))  # the table has 800 bytes
    try:
        with pytest.raises(tf.errors.ResourceExhaustedError, match=f"^export to {tmp_path} failed: .*File too large"):
            export(str(tmp_path), checkpoint, serialized_signature)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []
