"""`--restarts` with workers on this machine; multi_host_job_test has several hosts."""

# Promise of this file (launching.md): `--restarts` starts the job again on all hosts.

import json
import signal

import pytest

from lockstep.launch.base.errors import HostLost, LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.local.attempts import check_restarts, run_attempts
from lockstep.testing.launching import RANK, SLEEP, WRITE_PID, finish, launchers, pids_of, runs

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

launch = pytest.fixture(launchers)

K = RANK + 'k = int(os.environ["LOCKSTEP_RESTART"])\n'
# Written in one piece, so that it is complete when the other worker's end ends this one.
TELL = K + 'print(" ".join((str(k), os.environ["LOCKSTEP_SECRET"], os.environ["LOCKSTEP_RENDEZVOUS"])))\n'


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_job_that_fails_begins_anew_with_another_secret(launch, workers):
    worker = TELL + "if k < 2 and rank == 0: sys.exit(7 + k)\n"
    code, stdout, stderr = finish(launch("-n", workers, "--restarts", "5", worker=worker))
    assert code == 0
    told = {tuple(line.split()[1:]) for line in stdout}
    assert {k for k, *_ in told} == {"0", "1", "2"}
    assert len({secret for _, secret, _ in told}) == 3
    assert [line for line in stderr if "restart" in line] == [
        "[lockstep] rank 0 failed with exit code 7: restart 1 of 5 in 1 s",
        "[lockstep] rank 0 failed with exit code 8: restart 2 of 5 in 2 s",
    ]


@pytest.mark.parametrize(("restarts", "given", "told"), [("1", None, "1"), ("1", "0", "0"), ("0", None, "None")])
def test_jobs_that_may_begin_anew_save_their_position_in_the_data(launch, restarts, given, told):
    variables = {} if given is None else {"LOCKSTEP_SAVE_DATA_POSITION": given}
    worker = 'print(os.environ.get("LOCKSTEP_SAVE_DATA_POSITION"))\n'
    code, stdout, _ = finish(launch("-n", "2", "--restarts", restarts, worker=worker, variables=variables))
    assert (code, sorted(stdout)) == (0, [f"[0] {told}", f"[1] {told}"])


def test_the_last_attempts_exit_code_is_the_launchers(launch):
    code, _, stderr = finish(launch("-n", "2", "--restarts", "1", worker=K + "sys.exit(20 + k)"))
    assert code == 21
    assert len([line for line in stderr if ": restart 1 of 1 in 1 s" in line]) == 1


def test_a_signal_to_the_launcher_is_no_failure(launch, tmp_path):
    process = launch("-n", "2", "--restarts", "3", worker=WRITE_PID + SLEEP)
    pids = pids_of(tmp_path, 2)
    process.send_signal(signal.SIGTERM)
    code, _, stderr = finish(process)
    assert code == 128 + signal.SIGTERM
    assert not [line for line in stderr if "restart" in line]
    assert not [pid for pid in pids if runs(pid)]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_between_two_attempts_ends_the_launcher(launch, signum):
    process = launch("-n", "2", "--restarts", "4", worker=K + "sys.exit(3)")
    while "restart 3 of 4 in 4 s" not in process.stderr.readline():
        pass
    process.send_signal(signum)
    assert process.wait(120) in (3, -signum)


def test_a_command_that_cannot_be_run_is_no_failure(launch):
    code, _, stderr = finish(launch("-n", "2", "--restarts", "3", "no-such-program"))
    assert code == 127
    assert len(stderr) == 1


def test_functions_begin_anew_as_commands_do(launch, tmp_path):
    program = (
        "import os, sys\n"
        "from lockstep.launch import run\n"
        "def work():\n"
        "  print(os.environ['LOCKSTEP_RESTART'])\n"
        "  sys.exit(os.environ['LOCKSTEP_RESTART'] == '0')\n"
        "run(work, workers=2, restarts=1)\n"
    )
    code, stdout, _ = finish(launch(program=("-c", program)))
    assert code == 0
    assert {"[0] 1", "[1] 1"} < set(stdout)  # In the first attempt a worker may have been ended before it wrote.


@pytest.mark.parametrize("tasks", [1, 2])
def test_launchers_of_tasks_begin_anew_each_with_the_same_secret(launch, tmp_path, tasks):
    cluster = {"chief": ["127.0.0.2:8860"], "worker": ["127.0.0.3:8861"][: tasks - 1]}
    variables = {"LOCKSTEP_SECRET": "common"} if tasks > 1 else {}
    variables["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    code, stdout, _ = finish(launch("--restarts", "1", worker=TELL + "sys.exit(k == 0)", variables=variables))
    assert code == 0
    assert len({line.split()[2] for line in stdout}) == 3 - tasks


def test_a_host_that_was_never_there_is_a_wrong_request_and_one_that_is_lost_may_come_back(tmp_path):
    class Unreachable:
        may_restart = False

        def run(self):
            raise HostLost("host a cannot be reached")

    class Fails:
        may_restart = True

        class failed:  # noqa: N801
            name = "rank 0"
            describe_end = staticmethod(lambda: "failed")

        def run(self):
            return 3

    with open(tmp_path / "shown", "wb") as file:
        console = Console(file.fileno(), file.fileno())
        with pytest.raises(HostLost):
            run_attempts(lambda attempt: Unreachable(), 3, console)
        jobs = [Fails(), Unreachable(), Fails()]
        job, code = run_attempts(lambda attempt: jobs[attempt], 2, console)
    assert (job, code) == (jobs[2], 3)
    assert (tmp_path / "shown").read_text().splitlines() == [
        "[lockstep] rank 0 failed: restart 1 of 2 in 1 s",
        "[lockstep] host a cannot be reached: restart 2 of 2 in 2 s",
    ]


@pytest.mark.parametrize(("restarts", "number"), [(None, 0), (0, 0), (3, 3)])
def test_restarts_are_a_number(restarts, number):
    assert check_restarts(restarts) == number


@pytest.mark.parametrize("restarts", [-1, 1.5, "2", True])
def test_restarts_that_are_none_are_refused(restarts):
    with pytest.raises(LaunchError, match=f"--restarts {restarts}: wanted 0 or more"):
        check_restarts(restarts)
