"""`hb.keras.Model` on two workers computes what plain TensorFlow, or plain Keras, computes on all rows."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing import call_workers
from tests.multiprocess.estimator import estimator_worker
from tests.multiprocess.keras import features_worker as features
from tests.multiprocess.keras import model_worker as worker

needs_keras_3 = pytest.mark.skipif(
    not getattr(tf.keras, "__version__", "2").startswith("3"), reason="TensorFlow before 2.16 has no Keras 3"
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Returns the results of plain TensorFlow after an epoch, and of each worker's model."""
    folder = tmp_path_factory.mktemp("graph")
    expected = call_workers(estimator_worker.plain, 1, tmp_path_factory.mktemp("plain"))[0]
    return expected, call_workers(worker.in_a_graph, 2, str(folder), timeout_s=200), folder


# Promise (hybridbackend.md): it takes no step (HybridBackend, a wrong result: Keras' evaluation adds to the global
# step).
@pytest.mark.oldest
def test_an_epoch_trains_as_one_process_on_all_rows(graph):
    expected, outcomes, _ = graph
    for name, value in expected[0].items():
        np.testing.assert_allclose(outcomes[0]["weights"][name], value, atol=1e-5)


# Promise (hybridbackend.md): a history; values, as in Keras (HybridBackend: Keras' `fit` and `evaluate` return None).
@pytest.mark.oldest
def test_fit_and_evaluate_return_values_over_all_workers(graph):
    expected, outcomes, _ = graph
    first, second = outcomes
    assert first["history"].keys() == {f"{v}{n}" for v in ("", "val_") for n in ("loss", "auc", "accuracy", "twice")}
    assert first["epochs"] == [0, 1]
    for name, values in first["history"].items():
        np.testing.assert_allclose(second["history"][name], values, atol=1e-6)
        assert len(values) == 2
    np.testing.assert_allclose(first["history"]["twice"], 2 * np.array(first["history"]["loss"]), rtol=1e-5)
    # TensorFlow and Keras sum the trapezoids of the AUC in different ways.
    np.testing.assert_allclose(first["history"]["val_auc"][0], expected[1], atol=5e-3)
    # The evaluation follows the last epoch, and counts each row once, however rows are spread.
    for outcome in outcomes:
        for name, value in outcome["values"].items():
            np.testing.assert_allclose(value, first["history"][f"val_{name}"][1], atol=1e-5)
        assert len(outcome["listed"]) == 4


@pytest.mark.oldest
def test_a_worker_predicts_its_rows_and_worker_0_exports(graph):
    _, outcomes, _ = graph
    assert [len(o["predicted"]) for o in outcomes] == [1, estimator_worker.HELD_OUT - 1]
    assert [o["exported"] is None for o in outcomes] == [False, True]
    serve = tf.saved_model.load(outcomes[0]["exported"]).signatures["serving_default"]
    columns, _ = estimator_worker.data(1, estimator_worker.HELD_OUT)
    served = serve(item=tf.constant(columns["item"]), price=tf.constant(columns["price"]))["score"]
    np.testing.assert_allclose(served, np.concatenate([o["predicted"] for o in outcomes]), rtol=1e-5)


# Promise (hybridbackend.md): on the validation data (HybridBackend, a wrong result: a Keras model of tensors validates
# on training's batches).
@pytest.mark.oldest
def test_a_model_of_tensors_validates_on_the_validation_data(graph):
    _, outcomes, _ = graph
    for outcome in outcomes:
        values = outcome["of_tensors"]
        # A callback ended training after two epochs. Nothing is learned, so both have the values of the loaded weights.
        assert len(values["val_loss"]) == 2
        assert outcome["batches_told"] == 4
        for name in ("loss", "auc"):
            np.testing.assert_allclose(values[f"val_{name}"], [outcome["values"][name]] * 2, atol=1e-5)


@pytest.mark.oldest
@pytest.mark.skipif(not getattr(tf.keras, "__version__", "2").startswith("2"), reason="callbacks of Keras 2")
def test_worker_0_alone_writes_the_logs_of_callbacks_of_keras_2(graph):
    _, outcomes, folder = graph
    lines = (folder / "log.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["epoch", "0", "1"]
    assert len(list((folder / "board").iterdir())) == 1
    for outcome in outcomes:
        assert outcome["refused"].startswith("fit: ModelCheckpoint saves models of Keras")


@needs_keras_3
def test_a_subclass_of_keras_3_goes_on_from_its_checkpoints(tmp_path):
    expected = call_workers(worker.subclass, 1, None, 2, timeout_s=300)[0]
    outcomes = call_workers(worker.subclass, 2, str(tmp_path), None, timeout_s=300)
    for outcome in outcomes:
        for name, values in expected["history"].items():
            np.testing.assert_allclose(outcome["history"][name], values, atol=1e-5)
        np.testing.assert_allclose(outcome["values"], expected["values"], atol=1e-5)
        for got, wanted in zip(outcome["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5)
        assert outcome["stopped"] == 2
        assert outcome["saved"] == ["best.weights.h5", "fit", "functional.keras"]
        assert outcome["kept"] == ["epoch-000003.weights.h5"]
        assert np.isfinite(outcome["functional"]).all()
        calls, trained = outcome["ended"]
        assert calls == {
            "in an epoch": {"batch": 2, "epoch": 1, "test": 4},
            "with its last batch": {"batch": 4, "epoch": 1, "test": 4},
            "with its last step": {"batch": 2, "epoch": 1, "test": 4},
            "after an epoch": {"batch": 8, "epoch": 2, "test": 8},
            "evaluation": {"test": 3},
            "prediction": {"predict": 1},
        }
        for got, wanted in zip(trained, outcomes[0]["ended"][1], strict=True):
            np.testing.assert_array_equal(got, wanted)
    program = "import keras, sys; print(keras.models.load_model(sys.argv[1]).count_params(), 'lockstep' in sys.modules)"
    command = [sys.executable, "-c", program, str(tmp_path / "functional.keras")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=500).stdout == "4 False\n"


@pytest.fixture(scope="module")
def asked_for():
    """Returns the results of plain Keras by case, and of each worker."""
    expected = call_workers(features.plain, 1, 2, timeout_s=300)[0]
    return expected, call_workers(features.trained, 2, timeout_s=300)


@needs_keras_3
@pytest.mark.parametrize("name", features.CASES)
def test_what_keras_can_be_asked_for_trains_as_plain_keras_does(name, asked_for):
    expected = asked_for[0][name]
    for outcome in asked_for[1]:
        got = outcome[name]
        assert not isinstance(got, str), got
        assert got["history"].keys() == expected["history"].keys()
        for key, values in expected["history"].items():
            np.testing.assert_allclose(got["history"][key], values, atol=1e-5, err_msg=key)
        for kind in ("weights", "slots"):
            for a, b in zip(got[kind], expected[kind], strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5, err_msg=kind)


@needs_keras_3
def test_optimizers_of_whole_variables_are_refused_for_sharded_tables(asked_for):
    for outcome in asked_for[1]:
        refused = outcome["refused"]
        assert refused.keys() == {"Lamb", "Adafactor"} and all("sharded tables" in text for text in refused.values())
