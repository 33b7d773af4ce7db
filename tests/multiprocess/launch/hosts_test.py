"""A job of the launcher on several hosts: its processes connect, exchange, and detect the loss of a host."""

# Promise of this file (launching.md): workers on several hosts exchange, and the loss of a host ends the job.

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.testing import fake_ssh
from lockstep.testing.launching import finish, launchers, wait_for

DEADLINE_S = 500
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

ELASTIC = """
import os, time
import numpy as np
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
weights = tf.Variable(tf.zeros([1000]))

@hvd.elastic.run
def train(state):
  if state.step:
    print("goes on at", state.step, hvd.rank(), hvd.size(), hvd.local_size(), hvd.cross_size(), flush=True)
  while state.step < 20:
    gradient = hvd.allreduce(tf.fill([1000], float(state.step)), op=hvd.Average)
    weights.assign_add(gradient)
    state.step += 1
    state.commit()
    if state.step == 10 and hvd.size() == 4:
      print("committed", os.environ.get("HOROVOD_HOSTNAME"), flush=True)
    while state.step == 10 and hvd.size() == 4:
      hvd.allreduce(tf.zeros([1000]))  # until a host is lost

state = hvd.elastic.TensorFlowState([weights], step=0)
train(state)
print("done", state.step, np.unique(weights).astype(int), flush=True)
"""

launch = pytest.fixture(launchers)


@pytest.fixture
def horovodrun(launch, tmp_path):
    """Returns a function that starts it on two hosts: both are this machine, and the engine distinguishes them."""
    (tmp_path / "network").mkdir()
    (tmp_path / "train.py").write_text(PROGRAM)
    for host in HOSTS:
        (tmp_path / "network" / f"login.{host}").write_text(f"LOCKSTEP_HOST={host}\n")
    variables = {"LOCKSTEP_SSH": f"{sys.executable} {fake_ssh.__file__}", "FAKE_SSH": str(tmp_path / "network")}

    def start(*words: str, options: tuple[str, ...] = ()) -> subprocess.Popen:
        hosts = () if "--host-discovery-script" in options else ("-H", ",".join(f"{host}:2" for host in HOSTS))
        program = ("-m", "horovod.runner", "-np", "4", *hosts, *options, sys.executable, "train.py", *words)
        return launch(program=program, variables=variables)

    return start


def test_processes_on_two_hosts_exchange(horovodrun):
    code, stdout, stderr = finish(horovodrun(), DEADLINE_S)
    assert code == 0, stderr
    assert sorted(stdout) == [f"[{rank}]<stdout>:{rank} {rank % 2} 2 [10]" for rank in range(4)]


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


# Promise (horovod_elastic.md): committed state survives the loss of a host, with rank 0 or without.
@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.long)])
def test_an_elastic_job_survives_the_loss_of_a_host(horovodrun, tmp_path, lost):
    """The lost host may be rank 0's. Committed state is kept, and the host gets no new processes."""
    (tmp_path / "train.py").write_text(ELASTIC)
    (tmp_path / "hosts").write_text("".join(f"{host}:2\n" for host in HOSTS))
    process = horovodrun(options=("--min-np", "2", "--host-discovery-script", "cat hosts"))
    committed = 0
    while committed < 4:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        committed += "committed" in line
    os.kill(int((tmp_path / "network" / f"agent.{HOSTS[lost]}").read_text()), signal.SIGKILL)
    code, stdout, stderr = finish(process, DEADLINE_S)
    assert code == 0, stderr
    told = [line.partition(">:")[2] for line in stdout]
    assert sorted(told) == [*["done 20 [190]"] * 2, "goes on at 10 0 2 2 1", "goes on at 10 1 2 2 1"]
    name = HOSTS[lost].partition("@")[2]
    said = [line for line in stderr if f"was lost with host {name}: " in line]
    assert len(said) == 2 and all(line.endswith(f"; no new workers on {HOSTS[lost]}") for line in said), stderr
