"""The flags of a training run, and the clock of its progress bar; tests/multiprocess/ranking_test.py trains."""

from __future__ import annotations

import types

import numpy as np
import pytest

import data
import train
from schema import Schema

WARM_UP_S, STEP_S = 9.0, (0.25, 0.5, 0.25, 4.0)


@pytest.fixture
def run(ratings, tmp_path):
    """Returns the run of some flags on twenty ratings."""

    def make(*flags):
        return train.Run.of(
            train.flags_from(["--data", str(ratings), "--data-dir", str(tmp_path / "prepared"), *map(str, flags)])
        )

    return make


def test_a_run_has_a_folder_of_its_data_model_and_optimizer(run, tmp_path):
    made = run("--batch-size", 4, "--epochs", 2, "--embedding-dim", 8)
    assert made.folder == data.prepare(made.folder, tmp_path) and made.schema == Schema.load(made.folder)
    assert made.run_dir.name == f"{made.folder.name}-{made.flags.model}8-{made.flags.optimizer}"
    assert (made.checkpoint_dir, made.export_dir) == (made.run_dir / "checkpoints", made.run_dir / "export")
    assert (made.start_step, made.plan.steps_per_epoch, made.plan.total_steps) == (0, 18 // 4, 2 * (18 // 4))


def test_the_clock_leaves_out_the_first_steps(run, monkeypatch):
    seconds = np.cumsum([WARM_UP_S] * train._WARM_UP_STEPS + [1.0, *STEP_S])
    monkeypatch.setattr(train, "time", types.SimpleNamespace(perf_counter=iter(seconds).__next__))
    hook = train.ProgressHook(run("--batch-size", 4), None, [])
    assert np.isnan(hook.step_ms()) and np.isnan(hook.samples_per_s()) and np.isnan(hook.loss)
    losses = np.linspace(1.0, 0.5, len(seconds))
    for loss in losses:
        hook.before_run(None)
        hook.after_run(None, types.SimpleNamespace(results=loss))
    hook.close()
    assert hook.step_ms() == pytest.approx(np.median(STEP_S) * 1e3)
    assert hook.samples_per_s() == pytest.approx(len(STEP_S) * 4 / np.sum(STEP_S))
    # Each step moves the shown loss by a twentieth of the difference.
    weights = np.array([0.95 ** (len(losses) - 1), *(0.05 * 0.95 ** np.arange(len(losses) - 2, -1, -1))])
    assert hook.loss == pytest.approx(weights @ losses)
