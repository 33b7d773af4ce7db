"""Held-out AUC of the main job does not depend on the number of workers, and is plain TensorFlow's.

Trains on MovieLens 100K if it is available: the variable LOCKSTEP_MOVIELENS names its folder, or it is beside the clone
in shared/data/ml-100k. Otherwise trains on data of the same shape that the example generates.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ranking_job

TOLERANCE = 0.002
# Sums in another order round differently, and training amplifies that. In these runs, the order of rows within a batch
# changes the AUC by 0.0002 (wide and deep) and 0.0004 (DLRM); after 2 epochs, where DLRM learns fast, by 0.008.
FLAGS = ("--epochs", 5)
# Evaluations and checkpoints in the middle of training are left out, because the test does not use them.
ONCE = ("--eval-every", 1_000_000, "--checkpoint-every", 1_000_000)


@pytest.fixture(scope="module")
def ratings(tmp_path_factory) -> Path:
    """Returns the prepared folder."""
    out = tmp_path_factory.mktemp("movielens")
    source = ranking_job.movielens()
    if source is None:
        return ranking_job.made_movielens(out)
    return Path(ranking_job.run_script("data.py", "--source", source, "--out", out, cwd=out).strip())


@pytest.fixture(scope="module")
def plain_auc(ratings, tmp_path_factory) -> Callable[[str], float]:
    """Returns a function of a model's name: the AUC after the same steps of one process without Lockstep."""

    @functools.cache
    def auc(model: str) -> float:
        arguments = ("--data", ratings, "--model", model, *FLAGS)
        cwd = tmp_path_factory.mktemp("plain")
        return json.loads(ranking_job.run_script("plain.py", *arguments, cwd=cwd, timeout_s=300))["auc"]

    return auc


@pytest.mark.parametrize(("workers", "model"), [(1, "dlrm"), (2, "dlrm"), (4, "dlrm"), (2, "wide_and_deep")])
@pytest.mark.long  # training_test.py compares the weights themselves after fewer steps
def test_held_out_auc_is_that_of_plain_tensorflow(ratings, plain_auc, workers, model, tmp_path):
    report, _ = ranking_job.run_job(
        workers, "--data", ratings, "--model", model, *FLAGS, *ONCE, cwd=tmp_path, timeout_s=400
    )
    expected = plain_auc(model)
    assert expected > 0.6, "a model that learned nothing proves nothing"
    assert report["compared_rows"] == report["held_out_rows"] == 10_000
    assert report["compared_auc"] == pytest.approx(expected, abs=TOLERANCE)
    assert report["held_out_auc"] == pytest.approx(expected, abs=TOLERANCE), "by thresholds, over all workers"
