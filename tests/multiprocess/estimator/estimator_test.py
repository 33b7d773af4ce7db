"""Estimators on several workers compute what plain TensorFlow computes on all rows."""

import json

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing import call_workers
from tests.multiprocess.estimator import estimator_worker as worker

pytestmark = pytest.mark.oldest

STEPS = worker.ROWS // (2 * worker.BATCH)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return call_workers(worker.plain, 1, tmp_path_factory.mktemp("plain"))[0]


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2])
def job(request, tmp_path_factory):
    """Returns the folder, and the results of each worker's estimator."""
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


def test_a_hook_of_one_worker_ends_an_evaluation_of_all(job):
    _, outcomes = job
    for outcome in outcomes:
        assert outcome["stopped"] == outcome["of_three"] == outcomes[0]["of_three"]
        assert outcome["stopped"]["loss"] != outcome["again"]["loss"]


def test_each_worker_predicts_all_of_its_rows(job, expected):
    _, outcomes = job
    np.testing.assert_allclose(np.concatenate([o["predicted"] for o in outcomes]), expected[2], atol=1e-5)
    # Only worker 0 makes one prediction, and no worker waits for it.
    np.testing.assert_allclose(outcomes[0]["first"], expected[2][0], atol=1e-5)


# Promise (hybridbackend.md): it means all data (HybridBackend: `EvalSpec(steps=None)` fails in `train_and_evaluate`).
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


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Returns the folder, and the results of `train_and_evaluate` on each of two workers."""
    folder = tmp_path_factory.mktemp("told")
    return folder, call_workers(worker.tell, 2, str(folder), timeout_s=120)


def _exported(folder, name):
    return sorted(path.name for path in (folder / "model/export" / name).iterdir())


def test_hooks_listeners_and_max_steps_are_kept_to(told):
    _, outcomes = told
    for outcome in outcomes:
        assert outcome["steps"] == 6
        assert outcome["saved"] == [0, 2, 4, 6]
        assert outcome["again"] == (None, [])
        assert outcome["wrapped"]
        assert "wanted a path" in outcome["refused"]


def test_evaluations_keep_their_distance_and_exporters_export(told):
    folder, outcomes = told
    assert outcomes[0]["values"] == outcomes[1]["values"]
    assert outcomes[0]["values"]["global_step"] == 6
    # Evaluations of the first checkpoint after training began, and of the last; others need 3600 s between them.
    summaries = [path for path in (folder / "model/eval_held_out").iterdir()]
    events = [event for path in summaries for event in tf.compat.v1.train.summary_iterator(str(path))]
    assert [event.step for event in events if event.summary.value] == [2, 6]
    assert len(_exported(folder, "latest")) == 2
    assert len(_exported(folder, "final")) == 1
    # Nothing was better than the first.
    assert len(_exported(folder, "best")) == 1
    latest, final, best = outcomes[0]["exports"]
    assert (latest.rpartition("/")[2], final.rpartition("/")[2], best) == (
        _exported(folder, "latest")[-1],
        _exported(folder, "final")[0],
        None,
    )
    assert outcomes[1]["exports"] == []


# Promise (hybridbackend.md): by position as well (HybridBackend: `Estimator` takes `model_dir` only by name).
def test_a_warm_start_begins_with_another_models_variables(told):
    _, outcomes = told
    assert [outcome["warm"] for outcome in outcomes] == [[True, True]] * 2


def test_a_configuration_says_where_a_worker_is(told):
    folder, outcomes = told
    for rank, outcome in enumerate(outcomes):
        assert outcome["config"] == {
            "is_chief": True,
            "workers": 2,
            "id": rank,
            "ps": 0,
            "master": "",
            "type": "worker",
            "seed": 5,
            "model_dir": f"{folder}/model",
        }


# Promise (hybridbackend.md): it evaluates and exports beside the job (HybridBackend: `tf.estimator`'s task 'evaluator'
# is refused).
def test_an_evaluator_beside_the_job_evaluates_and_exports(told):
    folder, outcomes = told
    cluster = {"chief": ["localhost:1"], "worker": ["localhost:2"], "evaluator": ["localhost:3"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}})
    (outcome,) = call_workers(worker.evaluate_beside, 1, str(folder), environment={"TF_CONFIG": config}, timeout_s=120)
    role, values, exports = outcome
    assert role == "evaluator"
    assert values["global_step"] == 6
    assert [path.rpartition("/")[2] for path in exports] == _exported(folder, "beside")
    assert len(list((folder / "model/eval_beside").iterdir())) == 1


# Promise (horovod_training.md): estimators of both kinds work beside `hvd.init()`.
def test_beside_horovod_tf_estimator_is_each_ranks_own_and_others_train_together(tmp_path):
    outcomes = call_workers(worker.beside_horovod, 2, str(tmp_path), timeout_s=120)
    for rank, outcome in enumerate(outcomes):
        assert outcome["made_before"] == -3 * (rank + 1)
        assert outcome["after_shutdown"] == -6 * (rank + 1)
        assert outcome["together"] == -3 * 1.5  # by the mean of both ranks' features
        assert f"rank {rank} has connected to the 2 workers of its job" in outcome["connected"]
        assert "hb.estimator.Estimator" in outcome["connected"]
        assert outcome["wrapped"]
    trained, refused = sorted((outcome["one_folder"] for outcome in outcomes), key=lambda one: isinstance(one, str))
    assert trained in (-3, -6)
    assert f"two ranks save checkpoints in '{tmp_path}/one'" in refused and "hvd.rank() == 0" in refused


# Promise (horovod_training.md): estimators of both kinds work beside `hvd.init()`.
def test_tf_estimator_trains_together_where_horovod_has_not_begun(tmp_path):
    outcomes = call_workers(worker.before_horovod, 2, str(tmp_path), timeout_s=120)
    for rank, (first, then) in enumerate(outcomes):
        assert first == -3 * 1.5
        assert f"rank {rank} has connected to the 2 workers of its job" in then
