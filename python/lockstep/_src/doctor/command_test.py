"""The doctor as its users see it, on a machine with little: 1 MiB of /dev/shm, no IPv6, one core, a busy port."""

import json
import os
import signal
import subprocess
import sys

import pytest

from lockstep._src.doctor.checks import collective_checks, times_of
from lockstep._src.doctor.command import main
from lockstep.testing import call_workers

pytestmark = pytest.mark.newest_only  # the processes take a while, and nothing depends on TensorFlow's version

DEADLINE_S = 300
# In namespaces of its own. The server holds a port while the doctor looks at it.
POOR = """
set -e
mount -t tmpfs -o size=1m tmpfs /dev/shm
ip link set lo up
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
exec taskset -c "$0" "$@"
"""
HOLD_A_PORT = """
import socket, sys
from lockstep.command import main
with socket.create_server(("127.0.0.1", 29555)):
  sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def namespaces():
    words = ["unshare", "--mount", "--net"]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("the kernel or the container refuses namespaces")
    return words


def test_a_poor_machine_is_explained_and_collectives_are_measured_all_the_same(namespaces):
    core = str(min(os.sched_getaffinity(0)))
    words = [*namespaces, "bash", "-c", POOR, core, sys.executable, "-c", HOLD_A_PORT]
    cluster = {"chief": ["127.0.0.1:29555"], "worker": ["127.0.0.1:29556"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    environment = {**os.environ, "TF_CONFIG": config}
    with subprocess.Popen(
        [*words, "doctor", "--json"], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as doctor:
        try:
            stdout, _ = doctor.communicate(timeout=DEADLINE_S)
        finally:
            if doctor.poll() is None:
                os.killpg(doctor.pid, signal.SIGKILL)
    assert doctor.returncode == 1  # only for the busy port
    ((_, listed),) = json.loads(stdout).items()
    findings = {finding["name"]: finding for finding in listed}
    assert [name for name, finding in findings.items() if finding["state"] == "problem"] == ["port 29555"]
    assert f"(pid {doctor.pid})" in findings["port 29555"]["seen"]
    assert findings["processors"]["state"] == "warning" and findings["processors"]["seen"].startswith("1 for 2 ranks")
    assert findings["/dev/shm"]["seen"] == "1 MiB, 1 MiB free: small"
    assert "does not limit" in findings["/dev/shm"]["advice"]
    assert "IPv4 works; IPv6 fails" in findings["loopback"]["seen"] and findings["loopback"]["state"] == "ok"
    assert findings["interfaces"]["seen"] == "only loopback"
    assert (
        "64 MiB in " in findings["allreduce, 64 MiB"]["seen"]
        and "between 2 ranks on 1 host" in (findings["allreduce, 64 MiB"]["seen"])
    )
    assert all(one["advice"] for one in listed if one["state"] != "ok")


@pytest.mark.workers
def test_in_a_job_its_own_ranks_measure_and_the_first_of_each_host_reports():
    outcomes = call_workers(main, 3, [], hosts="aab", timeout_s=100, check=False)
    assert [outcome.value for outcome in outcomes] == [0, 0, 0], outcomes
    first, second, other = (outcome.output for outcome in outcomes)
    for output in (first, other):
        assert "allreduce, 4 bytes" in output and "between 3 ranks on 2 hosts" in output
        assert output.splitlines()[-1].startswith("problems: 0, warnings: ")
    assert "allreduce" not in second


@pytest.mark.parametrize("words", [["-n", "2", "--hosts", "a:1"], ["--port", "x"], ["more"]])
def test_a_wrong_command_line_is_refused(words):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("hosts", "rate", "state"), [(1, 1e9, "ok"), (1, 1e8, "warning"), (2, 1e8, "ok"), (2, 1e7, "warning")]
)
def test_slow_collectives_are_a_warning(hosts, rate, state):
    times = {"ranks": 4, "hosts": hosts, "connect_s": 0.1, "latency_s": 1e-4, "seconds": 0.1, "bytes_per_s": rate}
    assert times_of(times)[-1].state == state


def test_a_host_that_cannot_be_reached_is_a_problem_with_the_launchers_own_words():
    (finding,), hosts = collective_checks(["--hosts", "nowhere:1", "--ssh-command", "false"])
    assert finding.state == "problem" and not hosts
    assert "nowhere" in finding.seen and "-m lockstep.launch --hosts nowhere:1" in finding.advice
