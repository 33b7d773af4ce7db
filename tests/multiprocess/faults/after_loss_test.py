"""A job of two tasks with one worker each, which has replaced its launcher: only the engine can end it."""

import json
import os
import signal
import sys
import time

import pytest

from lockstep.launch.base.ports import free_ports
from lockstep.testing.launching import finish, launchers, wait_for

# The workers connect in their launchers' processes. Then each does something else, outside of an exchange.
PROGRAM = """
import os, sys, time
import lockstep
import tensorflow as tf
lockstep.init()
lockstep.barrier()
if sys.argv[1] == "told" and lockstep.rank() == 0:
    try:
        while True:
            lockstep.barrier()
            open(f"there.{lockstep.rank()}", "w").write(str(os.getpid()))
    except tf.errors.OpError as error:
        print("told", flush=True)
    time.sleep(5)
    print("goes on", flush=True)
    sys.exit(0)
open(f"there.{lockstep.rank()}", "w").write(str(os.getpid()))
if sys.argv[1] == "leaves" and lockstep.rank() == 1:
    sys.exit(0)
if sys.argv[1] == "leaves":
    time.sleep(5)
    print("goes on", flush=True)
    sys.exit(0)
while sys.argv[1] == "told":
    lockstep.barrier()
time.sleep(300)
"""


@pytest.fixture
def launch(tmp_path):
    yield from launchers(tmp_path)


@pytest.fixture
def job(launch, tmp_path):
    """Starts a job's two tasks, and returns when both have connected."""
    (tmp_path / "train.py").write_text(PROGRAM)

    def start(what, **variables):
        ports = free_ports(2, "127.0.0.1")
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        tasks = []
        for index, host in enumerate("ab"):
            config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
            told = {"TF_CONFIG": config, "LOCKSTEP_SECRET": "common", "LOCKSTEP_HOST": host, **variables}
            tasks.append(launch(sys.executable, "train.py", what, variables=told))
        wait_for(lambda: all((tmp_path / f"there.{rank}").exists() for rank in range(2)), "both to have met")
        return tasks

    return start


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_worker_that_is_busy_ends_when_the_other_is_killed(job, lost):
    tasks = job("busy")
    os.kill(tasks[lost].pid, signal.SIGKILL)
    code, _, stderr = finish(tasks[1 - lost])
    assert code == 1, stderr
    said = [line for line in stderr if "outside of a collective" in line]
    assert len(said) == 1, stderr
    assert said[0].startswith(f"lockstep: rank {1 - lost} (process {tasks[1 - lost].pid} on host ")
    assert f"loss of a peer: rank {lost} (process {tasks[lost].pid} on host " in said[0]


def test_one_that_was_told_goes_on(job):
    tasks = job("told")
    os.kill(tasks[1].pid, signal.SIGKILL)
    code, stdout, stderr = finish(tasks[0])
    assert (code, stdout) == (0, ["told", "goes on"]), stderr


def test_one_whose_peer_has_left_goes_on(job):
    for task, wanted in zip(job("leaves"), (["goes on"], []), strict=True):
        code, stdout, stderr = finish(task)
        assert (code, stdout) == (0, wanted), stderr


def test_one_that_is_told_to_goes_on(job):
    tasks = job("busy", LOCKSTEP_END_AFTER_LOSS="never")
    os.kill(tasks[1].pid, signal.SIGKILL)
    time.sleep(5)
    assert tasks[0].poll() is None
