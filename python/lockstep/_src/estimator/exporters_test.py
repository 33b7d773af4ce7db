"""Inputs, outputs and exporters of estimators; their signatures are compared with TensorFlow's."""

import os

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.estimator import exporters
from lockstep._src.estimator.exporters import (
    BestExporter,
    ClassificationOutput,
    Exporter,
    FinalExporter,
    LatestExporter,
    PredictOutput,
    RegressionOutput,
    ServingInputReceiver,
)

_tf1 = tf.compat.v1
DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


@pytest.fixture(autouse=True)
def _graph():
    with tf.Graph().as_default():
        yield


class Estimator:
    """An estimator that writes an empty directory for each export, with numbers from 8 on."""

    def __init__(self):
        self.calls = []

    def export_saved_model(self, export_path, receive, **options):
        path = os.path.join(export_path, str(8 + len(self.calls)))
        os.makedirs(path)
        self.calls.append((receive, options))
        return path


def receive():
    raise AssertionError("the estimator calls it")


def _export(exporter, estimator, folder, result=None, is_final=False):
    """Exports the checkpoint of the next number. Returns the name of the export."""
    folder.mkdir(exist_ok=True)
    arguments = {"estimator": estimator, "export_path": str(folder), "eval_result": result or {"loss": 1.0}}
    exported = exporter.export(checkpoint_path=f"c{len(estimator.calls)}", is_the_final_export=is_final, **arguments)
    return exported and os.path.basename(exported)


def test_the_final_exporter_exports_once_with_its_arguments(tmp_path):
    estimator, exporter = Estimator(), FinalExporter("final", receive, {"a": "b"}, True)
    assert _export(exporter, estimator, tmp_path) is None
    assert _export(exporter, estimator, tmp_path, is_final=True) == "8"
    assert estimator.calls == [
        (receive, {"assets_extra": {"a": "b"}, "as_text": True, "checkpoint_path": "c0"}),
    ]
    assert exporter.name == "final"


@pytest.mark.parametrize(("keep", "kept"), [(2, ["9", "10"]), (5, ["8", "9", "10"]), (None, ["8", "9", "10"])])
def test_the_latest_exports_are_kept(tmp_path, keep, kept):
    estimator, exporter = Estimator(), LatestExporter("latest", receive, exports_to_keep=keep)
    (tmp_path / "temp-1").mkdir()
    assert [_export(exporter, estimator, tmp_path) for _ in range(3)] == ["8", "9", "10"]
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "temp-1"])


def test_the_latest_exporter_exports_a_checkpoint_once(tmp_path):
    estimator, exporter = Estimator(), LatestExporter("latest", receive)
    arguments = {"estimator": estimator, "export_path": str(tmp_path), "eval_result": None}
    paths = [
        exporter.export(checkpoint_path=checkpoint, is_the_final_export=is_final, **arguments)
        for checkpoint, is_final in (("a", False), ("a", True), ("b", True))
    ]
    assert [os.path.basename(path) for path in paths] == ["8", "8", "9"]


@pytest.mark.parametrize(
    ("compare_fn", "exported"),
    [(None, [True, False, True, False]), (lambda best_eval_result, current_eval_result: True, [True] * 4)],
    ids=["loss", "own"],
)
def test_the_best_exporter_exports_better_results_only(tmp_path, compare_fn, exported):
    estimator, exporter = Estimator(), BestExporter("best", receive, compare_fn)
    got = [_export(exporter, estimator, tmp_path, {"loss": loss}) is not None for loss in (3.0, 3.0, 2.0, 2.5)]
    assert got == exported


def test_the_best_exporter_compares_losses_that_are_there(tmp_path):
    exporter = BestExporter(serving_input_receiver_fn=receive)
    estimator = Estimator()
    _export(exporter, estimator, tmp_path, {"auc": 1.0})
    with pytest.raises(ValueError, match=r"BestExporter: an evaluation returned \{'auc': 1.0\}, wanted a 'loss'"):
        _export(exporter, estimator, tmp_path, {"loss": 1.0})
    assert exporter.name == "best_exporter"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LatestExporter("x", receive, exports_to_keep=0), ValueError, "exporter 'x': exports_to_keep is 0"),
        (lambda: BestExporter("x", receive, exports_to_keep="3"), TypeError, "exporter 'x': exports_to_keep is '3'"),
        (lambda: BestExporter("x"), ValueError, "exporter 'x': serving_input_receiver_fn is None, wanted a function"),
        (lambda: ClassificationOutput(), ValueError, "ClassificationOutput: scores and classes are None, wanted"),
        (
            lambda: ServingInputReceiver({}, 3),
            TypeError,
            "ServingInputReceiver: receiver_tensors: got 'input': 3, wanted",
        ),
        (lambda: ServingInputReceiver({}, {3: tf.zeros([])}), TypeError, "got 3: <tf.Tensor"),
        (lambda: PredictOutput({"x": 3}), TypeError, "PredictOutput: outputs: got 'x': 3, wanted a name and a tensor"),
    ],
    ids=["keep", "type", "best", "classification", "receiver", "name", "output"],
)
def test_wrong_arguments_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_base_of_exporters_is_abstract():
    with pytest.raises(NotImplementedError):
        Exporter().name  # noqa: B018
    with pytest.raises(NotImplementedError):
        Exporter().export(None, "", "", None, True)


@pytest.mark.parametrize("rows", [None, 4])
def test_raw_inputs_are_the_features(rows):
    features = {"id": tf.zeros([2], tf.int64), "x": tf.zeros([2, 3])}
    receiver = exporters.build_raw_serving_input_receiver_fn(features, rows)()
    assert list(receiver.features) == list(receiver.receiver_tensors) == ["id", "x"]
    for name, (dtype, shape) in {"id": (tf.int64, [rows]), "x": (tf.float32, [rows, 3])}.items():
        assert receiver.features[name] is receiver.receiver_tensors[name]
        assert (receiver.features[name].dtype, receiver.features[name].shape.as_list()) == (dtype, shape)


# Promise (deltas.md): exports with ragged and sparse inputs serve what `predict` returns.
def test_raw_inputs_of_lists_have_no_padding():
    lists = [[5, 1], [], [2, 2, 3]]
    ragged = tf.ragged.constant(lists, tf.int64)
    features = {"r": ragged, "s": ragged.to_sparse(), "v": tf.ragged.constant([[[1.0, 2.0]]], ragged_rank=1)}
    receiver = exporters.build_raw_serving_input_receiver_fn(features)()
    shapes = {name: tensor.shape.as_list() for name, tensor in receiver.features.items()}
    assert shapes == {"r": [None, None], "s": [None, None], "v": [None, None, 2]}
    means = tf.reduce_mean(tf.cast(receiver.features["r"], tf.float32), 1)
    sums = tf.sparse.reduce_sum(receiver.features["s"], 1)
    fed = {
        receiver.receiver_tensors["r"]: _tf1.ragged.constant_value(lists, np.int64),
        receiver.receiver_tensors["s"]: _tf1.SparseTensorValue(
            [[0, 0], [0, 1], [2, 0], [2, 1], [2, 2]], [5, 1, 2, 2, 3], [3, 3]
        ),
    }
    with _tf1.Session() as session:
        served = session.run([tf.math.multiply_no_nan(means, [1.0, 0.0, 1.0]), sums], fed)
    assert [values.tolist() for values in served] == [[3.0, 0.0, pytest.approx(7 / 3)], [6, 0, 7]]


def test_raw_inputs_of_values_are_those_of_tensors():
    lists = [[5, 1], [], [2, 2, 3]]
    ragged = tf.ragged.constant(lists, tf.int64)
    indices, values = [[0, 0], [0, 1], [2, 0], [2, 1], [2, 2]], [5, 1, 2, 2, 3]
    tensors = {"s": ragged.to_sparse(), "l": ragged.to_sparse(), "r": ragged}
    of_numpy = _tf1.SparseTensorValue(np.array(indices), np.array(values), np.array([3, 3]))
    features = {
        "s": of_numpy,
        "l": _tf1.SparseTensorValue(indices, values, [3, 3]),
        "r": _tf1.ragged.constant_value(lists, np.int64),
    }
    wanted = exporters.build_raw_serving_input_receiver_fn(tensors, 3)().features
    got = exporters.build_raw_serving_input_receiver_fn(features, 3)().features
    for name, tensor in wanted.items():
        assert type(got[name]) is type(tensor)
        assert (got[name].dtype, got[name].shape.as_list()) == (tensor.dtype, tensor.shape.as_list())
    with _tf1.Session() as session:
        sums = session.run(tf.sparse.reduce_sum(got["s"], 1), {got["s"]: of_numpy})
    assert sums.tolist() == [6, 0, 7]


def test_parsed_inputs_are_examples():
    spec = {"x": tf.io.FixedLenFeature([2], tf.float32)}
    receiver = exporters.build_parsing_serving_input_receiver_fn(spec)()
    example = tf.train.Example()
    example.features.feature["x"].float_list.value.extend([1.5, 2.5])
    (fed,) = receiver.receiver_tensors.values()
    assert (list(receiver.receiver_tensors), fed.dtype, fed.shape.as_list()) == (["examples"], tf.string, [None])
    with _tf1.Session() as session:
        assert session.run(receiver.features["x"], {fed: [example.SerializeToString()]}).tolist() == [[1.5, 2.5]]


@pytest.fixture(name="tensors")
def _tensors():
    text = _tf1.placeholder(tf.string, [None], "text")
    return {"text": text, "x": tf.strings.to_number(text), "classes": tf.strings.lower(text)}


def _signature_of_tensorflow(kind, text, tensors):
    make = _tf1.saved_model
    if kind == "classification":
        return make.classification_signature_def(text, tensors["classes"], tensors["x"])
    if kind == "regression":
        return make.regression_signature_def(text, tensors["x"])
    return make.predict_signature_def({"examples": text}, {"output": tensors["x"]})


@pytest.mark.parametrize("kind", ["classification", "regression", "predict"])
def test_signatures_are_tensorflows(kind, tensors):
    output = {
        "classification": ClassificationOutput(tensors["x"], tensors["classes"]),
        "regression": RegressionOutput(tensors["x"]),
        "predict": PredictOutput(tensors["x"]),
    }[kind]
    receiver = ServingInputReceiver({}, {"examples": tensors["text"]})
    got = exporters.signatures({"own": output}, None, receiver)
    wanted = _signature_of_tensorflow(kind, tensors["text"], tensors)
    assert got == {"own": wanted, DEFAULT: wanted}


def test_predictions_are_the_default_outputs(tensors):
    receiver = ServingInputReceiver({}, tensors["text"])
    got = exporters.signatures(None, {"x": tensors["x"]}, receiver)
    assert got == {DEFAULT: _tf1.saved_model.predict_signature_def({"input": tensors["text"]}, {"x": tensors["x"]})}


def test_each_output_has_a_signature_for_each_kind_of_input(tensors):
    receiver = ServingInputReceiver({}, {"text": tensors["text"]}, {"raw": {"x": tensors["x"]}})
    outputs = {DEFAULT: PredictOutput({"x": tensors["x"]}), "other": PredictOutput({"classes": tensors["classes"]})}
    got = exporters.signatures(outputs, None, receiver)
    assert {name: (set(signature.inputs), set(signature.outputs)) for name, signature in got.items()} == {
        DEFAULT: ({"text"}, {"x"}),
        "other": ({"text"}, {"classes"}),
        f"raw:{DEFAULT}": ({"x"}, {"x"}),
        "raw:other": ({"x"}, {"classes"}),
    }


def test_several_outputs_need_one_of_the_default_name(tensors):
    outputs = {"a": PredictOutput(tensors["x"]), "b": PredictOutput(tensors["x"])}
    with pytest.raises(ValueError, match=rf"export_outputs has \['a', 'b'\], wanted one of them to be '{DEFAULT}'"):
        exporters.signatures(outputs, None, ServingInputReceiver({}, tensors["text"]))


@pytest.mark.parametrize("inputs", [("x",), ("text", "classes")], ids=["no strings", "two"])
def test_classifications_need_one_input_of_strings(inputs, tensors):
    receiver = ServingInputReceiver({}, {name: tensors[name] for name in inputs})
    with pytest.raises(ValueError, match="ClassificationOutput and RegressionOutput need one input tensor of strings"):
        exporters.signatures({"a": RegressionOutput(tensors["x"])}, None, receiver)
