"""A job's figures cover all its processes, and a job that fails or hangs ends with a reason."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

import jobs
from jobs import Command, System, launch
from turn import TurnError
from workloads import WORKLOADS

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

WORKER = """
import os, sys, time
from pathlib import Path
from process import Job, await_file, tell
job, rank = Job.load(Path(sys.argv[1])), os.environ["RANK"]
tell(job, "ready." + rank, os.getpid())
await_file(job, "start")
part = {"samples_per_s": 100, "step_ms": 10, "peak_gib": 0.5, "cpu_s": 1, "wall_s": 2, "loss": 0.25}
tell(job, "figures." + rank, part)
tell(job, "auc", 0.75)
"""
FAILING = "print('no table'); raise SystemExit(3)"


def system(program: str) -> System:
    def commands(job: jobs.Job) -> list[Command]:
        return [Command([sys.executable, "-c", program, str(job.folder)], {"RANK": str(rank)}) for rank in range(2)]

    return System("a system", commands)


@pytest.fixture
def measured(monkeypatch):
    def run(program: str) -> dict[str, float]:
        monkeypatch.setitem(jobs.SYSTEMS, "fake", system(program))
        return launch("fake", WORKLOADS["dlrm-16"], Path("/data"), measures_auc=True)

    return run


def test_figures_are_those_of_all_workers(measured):
    figures = measured(WORKER)
    assert figures["samples_per_s"] == 200
    assert figures["peak_gib"] == 1
    assert figures["step_ms"] == 10
    assert figures["auc"] == 0.75


def test_a_program_that_does_not_start_is_named(monkeypatch):
    monkeypatch.setitem(jobs.SYSTEMS, "fake", System("a system", lambda job: [Command(["/no/such/program"])]))
    with pytest.raises(TurnError, match="fake: /no/such/program does not start: No such file"):
        launch("fake", WORKLOADS["dlrm-16"], Path("/data"), measures_auc=False)


def test_a_process_that_fails_is_named_with_its_last_lines(measured):
    with pytest.raises(TurnError, match=r"(?s)fake: process \d: exit code 3.*no table"):
        measured(FAILING)


def test_a_job_that_hangs_is_ended_at_its_deadline(measured, monkeypatch, tmp_path):
    monkeypatch.setattr(jobs, "DEADLINE_S", 1)
    pids = tmp_path / "pids"
    program = f"import os, time; open({str(pids)!r}, 'a').write(str(os.getpid()) + ' '); time.sleep(600)"
    started = time.monotonic()
    with pytest.raises(TurnError, match="no ready.0 within 1 s"):
        measured(program)
    assert time.monotonic() - started < 30
    for pid in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
