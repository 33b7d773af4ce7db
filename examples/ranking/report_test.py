"""The report of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest

import report

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

FIGURES = {
    "data": "MovieLens",
    "model": "dlrm",
    "workers": 2,
    "first_step": 0,
    "steps": 10,
    "batch_size": 64,
    "samples_per_s": 12345.6,
    "step_ms": 5.25,
    "training_loss": 0.5,
    "held_out_rows": 4,
    "held_out_auc": 0.75,
    "held_out_accuracy": 0.5,
    "checkpoint": "checkpoints/model.ckpt-10",
    "export": "export/1",
    "picture": "training.svg",
}
LABELS, SCORES = np.array([0, 1, 0, 1.0]), np.array([0.2, 0.5, 0.6, 0.8], np.float32)


def test_compares_the_trained_and_the_served_scores_of_the_same_rows():
    figures = report.compare(LABELS, SCORES, SCORES + np.float32([0, 0, -0.3, 0]))
    assert figures["compared_auc"] == 0.75 and figures["served_auc"] == 1.0
    assert figures["max_score_difference"] == pytest.approx(0.3)
    assert figures["compared_loss"] == pytest.approx(-np.log([0.8, 0.5, 0.4, 0.8]).mean())


def test_the_table_leaves_out_what_was_not_measured_and_the_file_says_null(tmp_path):
    figures = {**FIGURES, **report.compare(LABELS, SCORES, SCORES)}
    assert "12,346 samples/s, median step 5.2 ms" in report.table(figures)
    assert "resumed" not in report.table(figures)
    nothing = {
        **figures,
        "first_step": 10,
        **dict.fromkeys(("samples_per_s", "step_ms", "training_loss"), float("nan")),
    }
    table = report.table(nothing)
    assert "resumed at step 10" in table and "nan" not in table and "Speed" not in table
    report.save(nothing, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "report.json").read_text())["step_ms"] is None
