"""The main job, from Parquet to a served model, also when a worker is killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import tensorflow as tf

from lockstep.testing.workers import worker_variables
from tests import ranking_job

SMALL = ("--batch-size", 512, "--model", "wide_and_deep", "--embedding-dim", 8)
# From the death of a worker to the end of the job: 5 s, and some more on a busy machine. The job itself would
# continue for hours.
ENDED_WITHIN_S = 5.0 + 55.0


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> Path:
    """Returns a prepared folder with all kinds of features."""
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
    lines = re.findall(r'<polyline points="([^"]*)"', (tmp_path / report["picture"]).read_text())
    assert [len(points.split()) for points in lines] == [200, 2]  # the losses of all steps, the AUC of both evaluations


def test_what_cannot_be_trained_is_refused_without_a_traceback(films, tmp_path):
    command = ranking_job.train_command(2, "--data", films, "--batch-size", 511)
    with ranking_job.started(command, tmp_path, tmp_path / "log") as process:
        assert process.wait(240) == 1
    output = (tmp_path / "log").read_text()
    assert "--batch-size 511 cannot be divided by 2 workers" in output
    assert "Traceback" not in output


@pytest.mark.long  # tests/multiprocess/faults/restart_test.py has a shorter job
def test_a_killed_worker_ends_the_job_by_name_and_the_next_start_resumes(films, tmp_path):
    arguments = ("--data", films, *SMALL, "--checkpoint-every", 20, "--checkpoint-dir", tmp_path / "checkpoints")
    shared_memory = set(os.listdir("/dev/shm"))
    log = tmp_path / "killed.log"
    with ranking_job.started(ranking_job.train_command(2, *arguments, "--steps", 10**6), tmp_path, log) as process:
        killed_at = _wait_for_step(tmp_path / "checkpoints", 40, process, log)
        os.kill(ranking_job.worker_pids(process.pid)[1], signal.SIGKILL)
        code = _wait_for_end(process, log)
    output = log.read_text()
    assert code == 128 + signal.SIGKILL
    # The launcher is quicker than the other worker, so that worker's own error need not appear.
    assert re.search(r"\[lockstep\] rank 1 \(pid \d+\) was killed by SIGKILL", output)
    assert set(os.listdir("/dev/shm")) <= shared_memory

    saved = _saved_step(tmp_path / "checkpoints")
    assert saved >= killed_at
    report, output = ranking_job.run_job(2, *arguments, "--steps", saved + 30, cwd=tmp_path)
    assert report["first_step"] == saved and report["steps"] == saved + 30
    assert f"Resuming from step {saved} of {saved + 30}" in output
    assert _saved_step(tmp_path / "checkpoints") == saved + 30

    # A start after the last step trains no more; on another number of workers the model is the same.
    again, _ = ranking_job.run_job(1, *arguments, "--steps", saved + 30, cwd=tmp_path)
    assert again["first_step"] == again["steps"] == saved + 30
    assert again["held_out_auc"] == pytest.approx(report["held_out_auc"], abs=1e-6)
    assert again["compared_auc"] == pytest.approx(report["compared_auc"], abs=1e-6)


@pytest.mark.long  # python/lockstep/_src/engine/failure_report_test.py has shorter programs
def test_without_a_launcher_the_survivor_ends_by_itself_and_names_the_killed_worker(films, tmp_path):
    flags = ("--data", films, *SMALL, "--checkpoint-every", 5, "--steps", 10**6, "--run-dir", tmp_path / "run")
    logs = [tmp_path / f"{rank}.log" for rank in range(2)]
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(ranking_job.started(ranking_job.worker_command(*flags), tmp_path, log, variables))
            for log, variables in zip(logs, worker_variables(2), strict=True)
        ]
        _wait_for_step(tmp_path / "run" / "checkpoints", 5, workers[0], logs[0])
        workers[1].kill()
        code = _wait_for_end(workers[0], logs[0])
    assert code == 1
    assert re.search(rf"InternalError.* rank 1 \(process {workers[1].pid}\) died", logs[0].read_text())


def _wait_for_end(process: subprocess.Popen, log: Path) -> int:
    """Returns the exit code of a job that must end now."""
    try:
        return process.wait(ENDED_WITHIN_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the job still runs after {ENDED_WITHIN_S:g} s:\n{log.read_text()}")


def _saved_step(folder: Path) -> int:
    latest = tf.train.latest_checkpoint(folder)
    return int(latest.rpartition("-")[2]) if latest else 0


def _wait_for_step(folder: Path, step: int, process: subprocess.Popen, log: Path, timeout_s: float = 240) -> int:
    """Waits for the first checkpoint at or after `step`, and returns its step."""
    deadline = time.monotonic() + timeout_s
    while (saved := _saved_step(folder)) < step:
        assert process.poll() is None, f"the job ended:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"no checkpoint of step {step} after {timeout_s:g} s:\n{log.read_text()}"
        time.sleep(0.1)
    return saved
