"""The main job, from Parquet to a served model; and what becomes of it when a worker is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import tensorflow as tf

from tests import ranking_job

SMALL = ("--batch-size", 512, "--model", "wide_and_deep", "--embedding-dim", 8)


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> Path:
    """A prepared folder with all kinds of features."""
    return ranking_job.made_movielens(tmp_path_factory.mktemp("films"))


@pytest.mark.oldest
def test_two_workers_train_evaluate_export_and_the_export_serves_in_stock_tensorflow(films, tmp_path):
    flags = ("--steps", 200, "--eval-every", 100, "--compare-rows", 3000)
    report, output = ranking_job.run_job(2, "--data", films, *SMALL, *flags, cwd=tmp_path)
    assert report["workers"] == 2 and report["steps"] == 200 and report["first_step"] == 0
    assert report["held_out_rows"] == 10_000 and report["compared_rows"] == 3000
    assert report["held_out_auc"] > 0.6
    assert report["max_score_difference"] < 1e-5
    assert report["served_auc"] == pytest.approx(report["compared_auc"], abs=1e-5)
    assert tf.train.load_variable(report["checkpoint"], "global_step") == 200
    table = tf.train.load_variable(report["checkpoint"], "wide_and_deep/deep_user")
    assert table.shape == (944, 8)
    assert re.search(r"Held out +AUC 0\.\d{4}", output)
    assert "Training: 100%" in output


@pytest.mark.parametrize("flags", [("--batch-size", 511), ("--data", "nowhere"), ("--batch-size", 200_000)])
def test_what_cannot_be_trained_is_refused_by_every_worker(films, tmp_path, flags):
    log = tmp_path / "log"
    with ranking_job.started(ranking_job.train_command(2, "--data", films, *flags), tmp_path, log) as process:
        assert process.wait(60) == 1
    expected = {"nowhere": "nowhere: want a folder with", 511: "cannot be divided by 2", 200_000: "do not fill a batch"}
    assert expected[flags[1]] in log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_killed_worker_ends_the_job_by_name_and_the_next_start_resumes(films, tmp_path):
    arguments = ("--data", films, *SMALL, "--checkpoint-every", 20, "--checkpoint-dir", tmp_path / "checkpoints")
    shared_memory = set(os.listdir("/dev/shm"))
    log = tmp_path / "killed.log"
    with ranking_job.started(ranking_job.train_command(2, *arguments, "--steps", 10**6), tmp_path, log) as process:
        killed_at = _wait_for_step(tmp_path / "checkpoints", 40, process, log)
        os.kill(ranking_job.worker_pids(process.pid)[1], signal.SIGKILL)
        try:
            code = process.wait(20)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job goes on without rank 1:\n{log.read_text()}")
    output = log.read_text()
    assert code == 128 + signal.SIGKILL
    assert "rank 1" in output and "killed by SIGKILL" in output
    assert set(os.listdir("/dev/shm")) <= shared_memory

    saved = _saved_step(tmp_path / "checkpoints")
    assert saved >= killed_at
    report, output = ranking_job.run_job(2, *arguments, "--steps", saved + 30, cwd=tmp_path)
    assert report["first_step"] == saved and report["steps"] == saved + 30
    assert f"Resuming from step {saved} of {saved + 30}" in output
    assert _saved_step(tmp_path / "checkpoints") == saved + 30


def _saved_step(folder: Path) -> int:
    latest = tf.train.latest_checkpoint(folder)
    return int(latest.rpartition("-")[2]) if latest else 0


def _wait_for_step(folder: Path, step: int, process: subprocess.Popen, log: Path, timeout_s: float = 90) -> int:
    """The step of the first checkpoint at or behind `step`."""
    deadline = time.monotonic() + timeout_s
    while (saved := _saved_step(folder)) < step:
        assert process.poll() is None, f"the job ended:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"no checkpoint of step {step} after {timeout_s:g} s:\n{log.read_text()}"
        time.sleep(0.1)
    return saved
