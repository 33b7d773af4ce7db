"""Held-out AUC of the main job does not depend on the number of workers, and is plain TensorFlow's.

Trains on MovieLens 100K where it lies (the variable LOCKSTEP_MOVIELENS names its folder, or it is beside the clone in
shared/data/ml-100k), otherwise on data of the same shape that the example makes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests import ranking_job

TOLERANCE = 0.002
FLAGS = ("--epochs", 2)


@pytest.fixture(scope="module")
def ratings(tmp_path_factory) -> Path:
    """The prepared folder."""
    out = tmp_path_factory.mktemp("movielens")
    beside = ranking_job.EXAMPLE.parents[2] / "shared" / "data" / "ml-100k"
    source = Path(os.environ.get("LOCKSTEP_MOVIELENS", beside))
    if not source.is_dir():
        return ranking_job.made_movielens(out)
    return Path(ranking_job.run_script("data.py", "--source", source, "--out", out, cwd=out).strip())


@pytest.fixture(scope="module")
def plain_auc(ratings, tmp_path_factory) -> float:
    """AUC of the same model, batches and steps in one process that never imports Lockstep."""
    cwd = tmp_path_factory.mktemp("plain")
    return json.loads(ranking_job.run_script("plain.py", "--data", ratings, *FLAGS, cwd=cwd, timeout_s=180))["auc"]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_held_out_auc_is_that_of_plain_tensorflow(ratings, plain_auc, workers, tmp_path):
    report, _ = ranking_job.run_job(workers, "--data", ratings, *FLAGS, cwd=tmp_path, timeout_s=300)
    assert report["compared_rows"] == report["held_out_rows"] == 10_000
    assert report["compared_auc"] == pytest.approx(plain_auc, abs=TOLERANCE)
    assert report["held_out_auc"] == pytest.approx(plain_auc, abs=TOLERANCE), "by thresholds, over all workers"
    assert plain_auc > 0.55, "a model that learned nothing proves nothing"
