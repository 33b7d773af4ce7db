"""Estimators on several workers compute what plain TensorFlow computes on all rows."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing import call_workers
from tests.multiprocess import estimator_worker as worker

pytestmark = pytest.mark.oldest

STEPS = worker.ROWS // (2 * worker.BATCH)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return call_workers(worker.plain, 1, tmp_path_factory.mktemp("plain"))[0]


@pytest.fixture(scope="module", params=[1, 2])
def job(request, tmp_path_factory):
    """The folder, and what each worker's estimator gave."""
    folder = tmp_path_factory.mktemp("estimator")
    return folder, call_workers(worker.estimate, request.param, str(folder), timeout_s=120)


def _after_the_first_pass(folder):
    return tf.train.load_checkpoint(f"{folder}/model/model.ckpt-{STEPS}")


def test_the_weights_are_those_of_one_process(job, expected):
    folder, _ = job
    checkpoint = _after_the_first_pass(folder)
    for name, value in expected[0].items():
        np.testing.assert_allclose(checkpoint.get_tensor(name), value, atol=1e-5)


def test_metrics_of_tensorflow_and_of_this_library_are_over_all_workers(job, expected):
    _, outcomes = job
    for outcome in outcomes:
        for values in (outcome["values"], outcome["again"]):
            assert values["global_step"] == STEPS
            np.testing.assert_allclose([values["auc"], values["auc_of_all"]], expected[1], atol=1e-5)
            assert np.isfinite(values["loss"])
        assert outcome["values"]["loss"] == outcomes[0]["values"]["loss"]


def test_each_worker_predicts_all_of_its_rows(job, expected):
    _, outcomes = job
    np.testing.assert_allclose(np.concatenate([o["predicted"] for o in outcomes]), expected[2], atol=1e-5)
    # One prediction of worker 0 alone: nobody waits for it.
    np.testing.assert_allclose(outcomes[0]["first"], expected[2][0], atol=1e-5)


def test_evaluation_inside_of_training_goes_into_the_history(job):
    _, outcomes = job
    for outcome in outcomes:
        assert outcome["steps"] == 2 * STEPS
        assert [values["global_step"] for values in outcome["history"]] == [STEPS + 3, STEPS + 6]
        for values in outcome["history"]:
            np.testing.assert_allclose(values["auc"], values["auc_of_all"], atol=1e-5)


def test_the_export_serves_the_last_checkpoint(job):
    folder, outcomes = job
    assert [o["exported"] is None for o in outcomes] == [False] + [True] * (len(outcomes) - 1)
    checkpoint = tf.train.load_checkpoint(str(folder / "model"))
    columns, _ = worker.data(1, worker.HELD_OUT)
    hidden = np.concatenate([checkpoint.get_tensor("table")[columns["item"]], columns["price"][:, np.newaxis]], axis=1)
    logits = (hidden @ checkpoint.get_tensor("dense/kernel"))[:, 0]
    serve = tf.saved_model.load(outcomes[0]["exported"]).signatures["serving_default"]
    served = serve(item=tf.constant(columns["item"]), price=tf.constant(columns["price"]))["score"]
    np.testing.assert_allclose(served, 1 / (1 + np.exp(-logits)), rtol=1e-5)
