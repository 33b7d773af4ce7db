"""A job of the launcher's on several hosts trains: its processes meet, exchange, and see that a host is gone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.testing import fake_ssh
from lockstep.testing.launching import finish, launchers, wait_for

DEADLINE_S = 120
HOSTS = ("me@127.0.0.2", "me@127.0.0.3")
PROGRAM = """
import sys, time
import numpy as np
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
total = hvd.allreduce(tf.fill([1000], float(hvd.rank() + 1)), op=hvd.Sum)
print(hvd.rank(), hvd.local_rank(), hvd.local_size(), np.unique(total).astype(int), flush=True)
while len(sys.argv) > 1:
  hvd.allreduce(tf.fill([1000], 1.0))
"""

launch = pytest.fixture(launchers)


@pytest.fixture
def horovodrun(launch, tmp_path):
    """A function that starts it on two hosts, which are this machine, and which the engine tells apart."""
    (tmp_path / "network").mkdir()
    (tmp_path / "train.py").write_text(PROGRAM)
    for host in HOSTS:
        (tmp_path / "network" / f"login.{host}").write_text(f"LOCKSTEP_HOST={host}\n")
    variables = {"LOCKSTEP_SSH": f"{sys.executable} {fake_ssh.__file__}", "FAKE_SSH": str(tmp_path / "network")}

    def start(*words: str) -> subprocess.Popen:
        hosts = ",".join(f"{host}:2" for host in HOSTS)
        program = ("-m", "horovod.runner", "-np", "4", "-H", hosts, sys.executable, "train.py", *words)
        return launch(program=program, variables=variables)

    return start


def test_processes_on_two_hosts_exchange(horovodrun):
    code, stdout, stderr = finish(horovodrun(), DEADLINE_S)
    assert code == 0, stderr
    assert sorted(stdout) == [f"[{rank}] {rank} {rank % 2} 2 [10]" for rank in range(4)]


def test_launchers_of_tasks_on_two_hosts_are_one_job(launch, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    cluster = {"chief": ["127.0.0.2:8860"], "worker": ["127.0.0.3:8861"]}
    launched = []
    for role in cluster:
        config = json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
        variables = {"TF_CONFIG": config, "LOCKSTEP_SECRET": "common", "LOCKSTEP_HOST": role}
        launched.append(launch("-n", "2", sys.executable, "train.py", variables=variables))
    told = []
    for process in launched:
        code, stdout, stderr = finish(process, DEADLINE_S)
        assert code == 0, stderr
        told += sorted(stdout)
    assert told == [f"[{rank}] {rank} {rank % 2} 2 [10]" for rank in range(4)]


def test_a_host_that_is_lost_ends_the_job(horovodrun, tmp_path):
    process = horovodrun("go on")
    for _ in range(4):
        process.stdout.readline()
    agent = int((tmp_path / "network" / f"agent.{HOSTS[1]}").read_text())
    os.kill(agent, signal.SIGKILL)
    code, _, stderr = finish(process, DEADLINE_S)
    assert code != 0
    assert any("was lost with host 127.0.0.3 (ranks 2, 3)" in line for line in stderr), stderr
    wait_for(lambda: not Path(f"/proc/{agent}").exists(), "the agent to be gone")
