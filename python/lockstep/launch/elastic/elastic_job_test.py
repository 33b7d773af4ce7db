"""Elastic jobs as their users see them: a launcher with workers that come and go. Workers are programs of a few lines
that ask for places themselves, without TensorFlow."""

# Promise of this file (horovod_elastic.md): a killed process is replaced, too few processes end in time, and nothing
# stays behind.

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from lockstep.testing.elastic_worker import WORKER
from lockstep.testing.launching import DEADLINE_S, runs, wait_for

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

RUN = "import json, sys; from lockstep.launch.frontends.horovodrun import main; sys.exit(main(read_yaml=json.loads))"


@pytest.fixture
def launch(tmp_path):
    """Yields a function that starts an elastic job in tmp_path; all processes are killed at the end."""
    started = []

    def start(*options: str, worker: str, script: str = "") -> subprocess.Popen:
        (tmp_path / "worker.py").write_text(WORKER + worker)
        if script:
            (tmp_path / "hosts.sh").write_text("#!/bin/sh\n" + script)
            (tmp_path / "hosts.sh").chmod(0o755)
            options += ("--host-discovery-script", "hosts.sh")
        hidden = ("LOCKSTEP_", "HOROVOD_", "CUDA_", "NVIDIA_", "TF_CONFIG")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        command = [sys.executable, "-c", RUN, *options, sys.executable, "worker.py"]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        with contextlib.suppress(ValueError):  # communicate() may have closed the pipes.
            process.communicate(timeout=DEADLINE_S)
    pids = [int(path.read_text()) for path in tmp_path.glob("pid*")]
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not any(map(runs, pids)), "the workers to end")
    left = [pid for pid in pids if runs(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "workers outlived their launcher"


def finish(process: subprocess.Popen) -> tuple[int, list[str], str]:
    """Returns the exit code, the sorted lines of stdout, and stderr."""
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    return process.returncode, sorted(stdout.splitlines()), stderr


def test_a_killed_worker_is_replaced_when_its_host_has_cooled_down(launch):
    """The replacement joins behind the survivors, which continue meanwhile."""
    job = launch(
        # The survivors have begun a round long before the host has cooled down.
        *("-np", "3", "--min-np", "2", "--blacklist-cooldown-range", "5", "5"),
        script="sleep 0.5\necho localhost:3",  # The script is running when workers end, and when the job ends.
        worker="""
got = place()
if number == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if got["round"] == 1:
    assert place()["size"] == 2
    change = hear("changed")
    assert change["added"] and not change["removed"]
    place(keeps_state=True)
assert number != 3 or got["local_rank"] == 0
""",
    )
    code, lines, stderr = finish(job)
    assert (code, lines) == (
        0,
        [
            "[0]<stdout>:round 1: 0 of 3",
            "[0]<stdout>:round 2: 0 of 2",
            "[0]<stdout>:round 3: 0 of 3",
            "[1]<stdout>:round 1: 1 of 3",
            "[1]<stdout>:round 2: 1 of 2",
            "[1]<stdout>:round 3: 1 of 3",
            "[2]<stdout>:round 1: 2 of 3",
            "[2]<stdout>:round 3: 2 of 3",
        ],
    )
    assert stderr == "[lockstep] rank 0 was killed by SIGKILL; no new workers on localhost for 5.0 s\n"


def test_workers_come_and_go_with_what_the_script_says(launch, tmp_path):
    job = launch(
        *("-np", "1", "--max-np", "4", "--output-filename", "out"),
        script='if [ -e gone ]; then echo 127.0.0.1:1; elif [ -e more ]; then echo "127.0.0.1:1\nlocalhost:1"; '
        "else echo localhost:1; fi",
        worker="""
got = place()
if got["size"] == 1:
    open("more", "w")
    assert hear("changed")["added"]
    got = place()
assert (got["size"], got["host"], got["all_keep_state"]) == (2, ["localhost", "127.0.0.1"][number], False)
open("gone", "w")
change = hear("changed")
while not change["removed"]:
    change = hear("changed")
got = place(keeps_state=True)
assert (got["rank"], got["size"], got["all_keep_state"]) == (0, 1, True)
""",
    )
    code, lines, stderr = finish(job)
    assert (code, stderr) == (0, "")
    wanted = [
        "[0]<stdout>:removed",
        "[0]<stdout>:round 1: 0 of 1",
        "[0]<stdout>:round 2: 0 of 2",
        "[0]<stdout>:round 3: 0 of 1",
        "[1]<stdout>:round 2: 1 of 2",
    ]
    assert lines == wanted
    assert (tmp_path / "out/worker.1/stdout").read_text() == "round 2: 1 of 2\nround 3: 0 of 1\n"


def test_too_few_workers_are_an_error_in_time(launch):
    job = launch(
        *("-np", "2", "--min-np", "2", "--elastic-timeout", "5"),
        worker="got = place()\nif got['rank']: sys.exit(7)\nplace()",
    )
    code, _, stderr = finish(job)
    assert code == 7
    assert "[lockstep] rank 1 failed with exit code 7; no new workers on localhost" in stderr
    assert "1 of at least 2 workers are ready, after 5 s of waiting; hosts: localhost:2: the job ends" in stderr


def test_the_job_ends_when_all_fail(launch):
    code, _, stderr = finish(launch("-np", "2", "--min-np", "1", worker="sys.exit(5)"))
    assert code == 5
    assert stderr.endswith("[lockstep] all workers failed before the first round: the job ends\n")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_launcher(launch, tmp_path, signum):
    """The fixture checks that no process is left."""
    job = launch("-np", "2", "--min-np", "1", worker="place()\nopen(f'here{number}', 'w')\ntime.sleep(600)")
    deadline = time.monotonic() + DEADLINE_S
    while len(list(tmp_path.glob("here*"))) < 2:
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.02)
    job.send_signal(signum)
    job.communicate(timeout=DEADLINE_S)
    assert job.returncode == (143 if signum == signal.SIGTERM else -9)


def test_programs_that_ask_for_no_place_end_as_they_like(launch):
    code, lines, _ = finish(launch("-np", "2", "--min-np", "1", worker="time.sleep(number)\nprint('done')"))
    assert (code, lines) == (0, ["[worker 0]<stdout>:done", "[worker 1]<stdout>:done"])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "host discovery script 'hosts.sh' failed with exit code 3"),
        ("echo nowhere:x", "hosts.sh printed 'nowhere:x', wanted host:slots, or only host with --slots-per-host"),
        ("kill -9 $$", "host discovery script 'hosts.sh' was killed by SIGKILL"),
        ("exec yes localhost", "host discovery script 'hosts.sh' printed more than 1 MiB"),
        ("head -c 9999 /dev/zero | tr '\\0' x", "hosts.sh printed '" + "x" * 200 + "...', wanted host:slots"),
    ],
)
def test_a_script_that_fails_at_first_is_an_error(launch, script, message):
    code, _, stderr = finish(launch("-np", "2", script=script, worker=""))
    assert code == 2
    assert stderr.startswith(f"horovodrun: {message}")


# A line of a discovery script. The worker waits for its third run: then the launcher knows how the second one ended.
COUNT = "echo >> runs\n"
UNTIL_COUNTED = "place()\nwhile len(open('runs').read()) < 3: time.sleep(0.05)"


def test_a_script_that_fails_later_changes_nothing(launch):
    script = COUNT + "test -e failed && exit 4\ntouch failed\necho localhost:1"
    job = launch("-np", "1", script=script, worker=UNTIL_COUNTED)
    code, lines, stderr = finish(job)
    assert (code, lines) == (0, ["[0]<stdout>:round 1: 0 of 1"])
    assert stderr == "[lockstep] host discovery script 'hosts.sh' failed with exit code 4; keeping the current hosts\n"


def test_a_script_that_never_stops_later_changes_nothing(launch):
    script = COUNT + "test -e once && exec yes\ntouch once\necho localhost:1"
    job = launch("-np", "1", script=script, worker=UNTIL_COUNTED)
    code, lines, stderr = finish(job)
    assert (code, lines) == (0, ["[0]<stdout>:round 1: 0 of 1"])
    assert stderr == "[lockstep] host discovery script 'hosts.sh' printed more than 1 MiB; keeping the current hosts\n"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("script", ["sleep 600", "touch listed"])
def test_a_signal_ends_a_job_that_has_no_workers_yet(launch, tmp_path, script, signum):
    """While the first list is made, and while it has too few slots."""
    job = launch("-np", "1", script=f"echo $$ > pid\n{script}", worker="")
    deadline = time.monotonic() + DEADLINE_S
    while not (tmp_path / ("listed" if "touch" in script else "pid")).exists():
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.02)
    job.send_signal(signum)
    code, _, _ = finish(job)
    assert code == 128 + signum


def test_a_worker_without_a_rank_is_called_by_its_number(launch, tmp_path):
    """One that ends on request has not failed, and has no line; this one fails on its way out."""
    job = launch(
        *("-np", "1", "--min-np", "1"),
        worker="""
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
open("ready", "w").close()
time.sleep(600)
""",
    )
    deadline = time.monotonic() + DEADLINE_S
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
    _, _, stderr = finish(job)
    assert stderr.startswith("[lockstep] worker 0 (pid ") and "failed with exit code 3 after" in stderr
    assert "rank" not in stderr


def test_a_worker_that_failed_because_of_another_leaves_its_host_alone(launch):
    job = launch(
        *("-H", "localhost:1,127.0.0.1:1", "-np", "2", "--min-np", "2"),
        worker="""
from lockstep.launch.base import notes
got = place()
if got["rank"] == 0:
    sys.exit(3)
def runs():
    try:
        return open(f"/proc/{open('pid0').read()}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
while runs():
    time.sleep(0.02)
assert notes.say({"is": "failed", "because": notes.PEER, "error": "rank 0 left"})
sys.exit(1)
""",
    )
    code, _, stderr = finish(job)
    assert code == 3
    assert stderr.splitlines() == [
        "[lockstep] rank 0 failed with exit code 3; no new workers on localhost",
        "[lockstep] rank 1 failed with exit code 1 because another worker failed",
        "[lockstep] all workers that had the job's state have failed: the job ends",
    ]
