"""Elastic jobs whose workers are on several hosts, which are this machine under other names."""

# Promise of this file (horovod_elastic.md): hosts may join, leave, be lost, freeze and cool down.

import os
import re
import signal
import sys

import pytest

from lockstep.testing import fake_ssh
from lockstep.testing.elastic_worker import WORKER
from lockstep.testing.launching import DEADLINE_S, finish, launchers, pids_of, runs, wait_for

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

RUN = "import json, sys; from lockstep.launch.frontends.horovodrun import main; sys.exit(main(read_yaml=json.loads))"
A, B = "me@127.0.0.2", "me@127.0.0.3"
TELL = """
got = place()
print(*(got[what] for what in ("rank", "local_rank", "local_size", "cross_rank", "cross_size", "host")), flush=True)
"""

launch = pytest.fixture(launchers)


@pytest.fixture
def elastic(launch, tmp_path):
    """Yields a function that starts an elastic job; a stand-in for ssh leads to hosts with a user's name."""
    (tmp_path / "network").mkdir()

    def start(*options: str, worker: str, hosts: str = "", **more: str):
        (tmp_path / "train.py").write_text(WORKER + worker)
        if hosts:
            (tmp_path / "hosts").write_text(hosts)
            options += ("--host-discovery-script", "cat hosts")
        ours = {"LOCKSTEP_SSH": f"{sys.executable} {fake_ssh.__file__}", "FAKE_SSH": str(tmp_path / "network")}
        program = ("-c", RUN, *options, sys.executable, "train.py")
        return launch(program=program, variables={**ours, **more})

    return start


def _agent(tmp_path, host: str) -> int:
    return int(wait_for((tmp_path / "network" / f"agent.{host}").read_text, "an agent"))


def test_workers_on_several_hosts_have_places_and_a_meeting(elastic):
    job = elastic("-np", "4", "--min-np", "2", "-H", f"localhost:1,{A}:2,127.0.0.1:1", worker=TELL)
    code, lines, stderr = finish(job)
    assert (code, stderr) == (0, [])
    assert sorted(line for line in lines if "round" not in line) == [
        "[0]<stdout>:0 0 2 0 2 localhost",
        "[1]<stdout>:1 1 2 0 2 127.0.0.1",
        "[2]<stdout>:2 0 2 1 2 127.0.0.2",
        "[3]<stdout>:3 1 2 1 2 127.0.0.2",
    ]


def test_a_round_meets_at_rank_0s_host(elastic):
    told = "print(place()['rendezvous'], os.environ['HOROVOD_HOSTNAME'], flush=True)"
    code, lines, _ = finish(elastic("-np", "2", "--min-np", "2", "-H", f"{A}:1,localhost:1", worker=told))
    assert code == 0
    meetings = {line.partition(">:")[2].split()[0] for line in lines if "round" not in line}
    (meeting,) = meetings
    assert re.fullmatch(r"127\.0\.0\.2:\d+", meeting)


def test_a_host_that_joins_and_leaves(elastic, tmp_path):
    """Workers there start when the script names the host, and end when it names the host no longer."""
    job = elastic(
        *("-np", "1", "--min-np", "1", "--max-np", "3"),
        hosts="localhost:1\n",
        worker="""
size = place()["size"]
if number == 0:
    open("hosts", "w").write("localhost:1\\nme@127.0.0.2:2\\n")
while size < 3:
    change = hear("changed")
    assert change["added"]
    size = place(keeps_state=True)["size"]
if number == 0:
    open("hosts", "w").write("localhost:1\\n")
assert hear("changed")["removed"]
assert place(keeps_state=True)["size"] == 1
""",
    )
    code, lines, stderr = finish(job)
    assert (code, stderr) == (0, [])
    assert sorted(line.split(">:")[1] for line in lines if "removed" in line) == ["removed", "removed"]
    assert any(line.startswith("[0]<stdout>:round ") and line.endswith(": 0 of 1") for line in lines[2:])


ROUNDS = """
got = place()
if got["round"] == 1:
    print("trains", flush=True)
    while not os.path.exists("lost") or got["host"] != "localhost":
        time.sleep(0.05)
    got = place()
print("done", got["size"], got["host"], flush=True)
"""


@pytest.mark.parametrize("how", ["agent", "frozen"])
def test_a_host_that_is_lost_is_survived_and_left_alone(elastic, tmp_path, how):
    """A host is lost when its agent ends or is silent. Its workers then count as ended, and no new ones start there."""
    variables = {"LOCKSTEP_AGENT_TIMEOUT": "5"} if how == "frozen" else {}
    job = elastic("-np", "4", "--min-np", "1", hosts=f"localhost:2\n{A}:2\n", worker=ROUNDS, **variables)
    trains = 0
    while trains < 4:
        trains += "trains" in job.stdout.readline()
    pids = [int(wait_for((tmp_path / f"pid{number}").read_text, "its number")) for number in (2, 3)]
    agent = _agent(tmp_path, A)
    if how == "agent":
        os.kill(agent, signal.SIGKILL)
    else:
        os.kill(agent, signal.SIGSTOP)
    (tmp_path / "lost").touch()
    code, lines, stderr = finish(job)
    assert code == 0, stderr
    assert sorted(line for line in lines if "done" in line) == [
        "[0]<stdout>:done 2 localhost",
        "[1]<stdout>:done 2 localhost",
    ]
    assert len(stderr) == 2 and all(
        re.match(r"\[lockstep\] rank [23] was lost with host 127.0.0.2: .*; no new workers on me@127.0.0.2$", line)
        for line in stderr
    ), stderr
    wait_for(lambda: not any(runs(pid) for pid in pids), "its workers to end")


def test_a_lost_host_takes_workers_again_when_it_has_cooled_down(elastic, tmp_path):
    job = elastic(
        *("-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "1", "1"),
        hosts=f"localhost:1\n{A}:1\n",
        worker="""
got = place()
if got["round"] == 1 and got["rank"] == 1:
    print("trains", flush=True)
    time.sleep(600)
while got["size"] < 2 or got["round"] == 1:
    if got["round"] > 1:
        hear("changed")
    else:
        while not os.path.exists("lost"):
            time.sleep(0.05)
    got = place(keeps_state=True)
print("done", got["size"], flush=True)
""",
    )
    while "trains" not in job.stdout.readline():
        pass
    os.kill(_agent(tmp_path, A), signal.SIGKILL)
    (tmp_path / "lost").touch()
    code, lines, stderr = finish(job)
    assert code == 0, stderr
    assert sorted(line for line in lines if "done" in line) == ["[0]<stdout>:done 2", "[1]<stdout>:done 2"]


def test_a_host_that_cannot_be_reached_is_left_alone(elastic, tmp_path):
    hosts = "localhost:1\nme@b.invalid:1\n"
    worker = "place()\nwhile not os.path.exists('said'): time.sleep(0.05)"
    job = elastic("-np", "1", "--min-np", "1", "--max-np", "2", hosts=hosts, worker=worker)
    while not (line := job.stderr.readline()).startswith("[lockstep]"):
        assert line, "the launcher ended"
    (tmp_path / "said").touch()
    code, lines, stderr = finish(job)
    assert (code, lines) == (0, ["[0]<stdout>:round 1: 0 of 1"])
    assert not [line for line in stderr if line.startswith("[lockstep]")]
    assert line.startswith("[lockstep] worker 1 on me@b.invalid was lost with host b.invalid: "), stderr
    assert "Could not resolve hostname me@b.invalid" in line


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_signals_and_the_launchers_end_reach_workers_elsewhere(elastic, tmp_path, signum):
    job = elastic("-np", "2", "--min-np", "1", "-H", f"{A}:1,{B}:1", worker="place()\ntime.sleep(600)")
    while "round" not in job.stdout.readline():
        pass
    pids = pids_of(tmp_path, 2)
    job.send_signal(signum)
    job.communicate(timeout=DEADLINE_S)
    assert job.returncode == (143 if signum == signal.SIGTERM else -signal.SIGKILL)
    wait_for(lambda: not any(map(runs, pids)), "workers to end")


def test_output_of_workers_elsewhere_is_kept(elastic, tmp_path):
    job = elastic("-np", "1", "--min-np", "1", "-H", f"{A}:1", "--output-filename", "out", worker="place()")
    assert finish(job)[:2] == (0, ["[0]<stdout>:round 1: 0 of 1"])
    assert (tmp_path / "out" / "worker.0" / "stdout").read_text() == "round 1: 0 of 1\n"


def test_a_function_is_called_on_other_hosts_and_returns(launch, tmp_path):
    (tmp_path / "network").mkdir()
    (tmp_path / "calls.py").write_text(
        f"""
import os, pickle
from lockstep.launch.frontends.horovod_elastic import ElasticOptions
from lockstep.launch.frontends.horovod_request import Request
from lockstep.launch.frontends.horovodrun import run_function

def where():
    return os.environ["HOROVOD_HOSTNAME"]

if __name__ == "__main__":
    import calls
    request = Request(num_proc=3, hosts="{A}:2,localhost:1", elastic=ElasticOptions(min_np=1))
    print(run_function(calls.where, pickle.dumps, request))
"""
    )
    variables = {"LOCKSTEP_SSH": f"{sys.executable} {fake_ssh.__file__}", "FAKE_SSH": str(tmp_path / "network")}
    code, lines, stderr = finish(launch(program=("calls.py",), variables=variables))
    assert (code, lines) == (0, ["['127.0.0.2', '127.0.0.2', 'localhost']"]), stderr
