"""Programs of HybridBackend's first generation, run as their users run them, against numpy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.scripts.documents import BATCH, Training, halves, printed, run_program, served, write_rows

pytestmark = pytest.mark.oldest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybridbackend_generation_1")
    return folder, write_rows(folder / "train.parquet", 0, 1600), write_rows(folder / "eval.parquet", 1, 600)


def _run(program, folder, variables=None):
    arguments = [str(HERE / program), str(folder / "train.parquet"), str(folder / "eval.parquet"), str(folder)]
    return run_program(arguments, folder, workers=2, variables=variables)


@pytest.fixture(scope="module")
def outputs(data):
    return _run("hybridbackend_generation_1.py", data[0], {"HB_COMM_POOL_CAPACITY": "1"})


@pytest.mark.parametrize("example", ["predefined", "customized"])
def test_an_optimizer_trains_as_one_process_on_the_rows_of_both_workers(data, outputs, example):
    losses = np.transpose([printed(output, example) for output in outputs])
    np.testing.assert_allclose(losses, Training(halves(data[1])).losses, rtol=1e-4)


def test_the_session_trains_evaluates_and_exports_on_all_workers(data, outputs):
    folder, rows, held_out = data
    trained = Training(halves(rows))
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder / "checkpoints")))
    assert checkpoint.get_tensor("global_step") == len(rows["item"]) // 2 // BATCH
    np.testing.assert_allclose(checkpoint.get_tensor("model/table"), trained.table, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(checkpoint.get_tensor("model/slope"), trained.slope, rtol=1e-4, atol=1e-6)

    right = (trained.predict(held_out) > 0.5) == held_out["label"]
    for output in outputs:
        np.testing.assert_allclose(printed(output, "session", "accuracy"), [np.mean(right)], rtol=1e-6)

    exported = re.search(r"^session exported (.+)$", outputs[0], re.M).group(1)
    scores = served(exported, held_out["price"][:, np.newaxis], held_out["item"])
    np.testing.assert_allclose(scores, trained.predict(held_out), rtol=1e-4)


def test_the_estimator_trains_evaluates_and_exports(data):
    folder, _, held_out = data
    outputs = _run("hybridbackend_generation_1_estimator.py", folder)
    exported = re.search(r"^estimator exported (.+)$", outputs[0], re.M).group(1)
    auc = _auc(held_out["label"], served(exported, held_out["price"], held_out["item"]))
    assert auc > 0.9
    for output in outputs:
        np.testing.assert_allclose(printed(output, "estimator", "auc"), [auc], atol=2e-3)


def _auc(labels, scores):
    """Returns the share of pairs of a liked and another item that the scores order correctly; ties count half."""
    liked, other = scores[labels == 1][:, np.newaxis], scores[labels == 0]
    return np.mean((liked > other) + 0.5 * (liked == other))
