"""Jobs on several hosts, which are this machine under other names: with a user's name they are reached over ssh."""

# Promise of this file (horovod.md): processes and functions start on several hosts.
# Promise of this file (launching.md): a job of several hosts ends on all hosts when a launcher, an agent or ssh is
# killed, frozen or cut off.
# Promise of this file (security.md): the secret is on no command line, and in files only for their owner.

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from lockstep.launch.base.errors import LOST
from lockstep.testing import fake_ssh
from lockstep.testing.launching import (
    DEADLINE_S,
    ECHO_BEFORE_ITS_CAUSE,
    RANK,
    SLEEP,
    WITH_CHILD,
    WRITE_PID,
    finish,
    launchers,
    pids_of,
    runs,
    wait_for,
    without_reminder,
)

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

launch = pytest.fixture(launchers)

A, B = "me@127.0.0.2", "me@127.0.0.3"
# The launcher's promise for a host or a launcher that is frozen or cut off, and a margin for a busy machine. Without
# the launcher, processes run for 600 s. `make test-faults` measures the promise itself.
ENDED_WITHIN_S = 10.0
LATE_S = 50.0
# A limit of silence that no test reaches: agents have to notice the end of the connection.
PATIENT = {"LOCKSTEP_AGENT_TIMEOUT": "600"}


@pytest.fixture
def hosts(launch, tmp_path):
    """Yields a function that starts a launcher for hosts to which a stand-in for ssh leads."""
    folder = tmp_path / "network"
    folder.mkdir()

    def start(names: str, *options: str, variables: dict | None = None, **how):
        ours = {"LOCKSTEP_SSH": f"{sys.executable} {fake_ssh.__file__}", "FAKE_SSH": str(folder)}
        return launch("--hosts", names, *options, variables={**ours, **(variables or {})}, **how)

    start.folder = folder
    return start


def _pid(hosts, what: str) -> int:
    return int((hosts.folder / what).read_text())


def _gone(pids: list[int]) -> bool:
    return not [pid for pid in pids if runs(pid)]


def _wait_until_gone(pids: list[int]) -> None:
    wait_for(lambda: _gone(pids), "processes to end")


def test_workers_know_their_places_and_meet(hosts):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RENDEZVOUS", "SECRET")
    tell = f"import json; print(json.dumps([os.environ['LOCKSTEP_' + n] for n in {names}] + [os.environ['TF_CONFIG']]))"
    code, stdout, stderr = finish(hosts(f"localhost:1,{A}:2,{B}:1,127.0.0.1:1", worker=tell))
    assert (code, without_reminder(stderr)) == (0, [])
    told = [json.loads(line.partition("] ")[2]) for line in sorted(stdout)]
    assert [worker[:4] for worker in told] == [
        ["0", "5", "0", "2"],
        ["1", "5", "1", "2"],
        ["2", "5", "0", "2"],
        ["3", "5", "1", "2"],
        ["4", "5", "0", "1"],
    ]
    assert len({tuple(worker[4:6]) for worker in told}) == 1
    assert len(bytes.fromhex(told[0][5])) == 32
    configs = [json.loads(worker[6]) for worker in told]
    assert [config["task"]["type"] for config in configs] == ["chief", *["worker"] * 4]
    assert configs[4]["cluster"]["worker"][3].startswith("127.0.0.3:")


@pytest.mark.parametrize(
    ("options", "host", "told"), [((), "127.0.0.2", "None"), (("--interface", "lo"), "127.0.0.1", "lo")]
)
def test_rank_0_is_met_where_its_host_is_reached(hosts, options, host, told):
    tell = "print(os.environ['LOCKSTEP_RENDEZVOUS'], os.environ.get('LOCKSTEP_INTERFACE'))"
    code, stdout, stderr = finish(hosts(f"{A}:1,localhost:1", *options, worker=tell))
    assert (code, without_reminder(stderr), len(stdout)) == (0, [], 2)
    for line in stdout:
        assert re.fullmatch(rf"\[[01]\] {re.escape(host)}:[23][0-9]{{4}} {told}", line)


def test_the_environment_travels_but_for_what_belongs_to_a_machine(hosts, tmp_path):
    (hosts.folder / f"login.{A}").write_text("TMPDIR=/its-own\nLOCKSTEP_RANK=7\nHB_X=its-own\n")
    tell = "print(os.getcwd(), *(os.environ.get(n) for n in ('HB_X', 'DATA', 'TMPDIR', 'SSH_AUTH_SOCK', 'PWD')))"
    variables = {"HB_X": "1", "DATA": "/d", "TMPDIR": "/tmp", "SSH_AUTH_SOCK": "/s"}
    code, stdout, stderr = finish(hosts(f"{A}:1", worker=tell, variables=variables))
    assert (code, without_reminder(stderr)) == (0, [])
    assert stdout == [f"[0] {tmp_path} 1 /d /its-own None {tmp_path}"]


def test_each_host_has_gpus_of_its_own(hosts):
    (hosts.folder / f"login.{A}").write_text("CUDA_VISIBLE_DEVICES=6,7\n")
    worker = "print(os.environ['CUDA_VISIBLE_DEVICES'])"
    code, stdout, _ = finish(hosts(f"{A}:2,{B}:1", worker=worker, variables={"CUDA_VISIBLE_DEVICES": "3,4"}))
    assert (code, sorted(stdout)) == (0, ["[0] 6", "[1] 7", "[2] 3"])
    code, _, stderr = finish(hosts(f"{A}:3", worker=worker))
    assert code == 2
    assert "host 127.0.0.2: 3 workers on " in stderr[-1] and "only 2 GPUs are visible (6, 7)" in stderr[-1]


def test_a_host_may_take_its_time_to_find_its_gpus(hosts, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nsleep 8; echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)'\n")
    program.chmod(0o755)
    (hosts.folder / f"login.{A}").write_text("NVIDIA_VISIBLE_DEVICES=all\n")
    variables = {"LOCKSTEP_AGENT_TIMEOUT": "5", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    code, stdout, stderr = finish(
        hosts(f"{A}:1", worker="print(os.environ['CUDA_VISIBLE_DEVICES'])", variables=variables)
    )
    assert (code, stdout, stderr) == (0, ["[0] GPU-aaaa"], [])


@pytest.mark.parametrize(
    ("more", "options", "variables", "counts"),
    [
        (f",{B}:3", ("-n", "2"), {}, {"2", "3"}),
        (f",{B}:3", (), {}, {"1", "3"}),
        ("", (), {"CUDA_VISIBLE_DEVICES": "4,5"}, {"2"}),
    ],
    ids=["-n", "one", "GPUs"],
)
def test_hosts_without_a_number_have_as_many_workers_as_is_said_or_as_there_are_gpus_here(
    hosts, more, options, variables, counts
):
    worker = "print(os.environ['LOCKSTEP_LOCAL_WORLD_SIZE'])"
    code, stdout, _ = finish(hosts(f"{A}{more}", *options, worker=worker, variables=variables))
    assert (code, {line[4:] for line in stdout}) == (0, counts)


@pytest.mark.parametrize(("rank", "is_reminded"), [(1, False), (2, True)])
def test_a_worker_of_another_host_tells_that_it_has_joined_the_others(hosts, rank, is_reminded):
    worker = f"from lockstep.launch.base import notes\nif rank == {rank}: notes.say({{'is': 'joined'}})"
    code, _, stderr = finish(hosts(f"localhost:1,{A}:1", worker=RANK + worker))
    assert (code, without_reminder(stderr), len(stderr)) == (0, [], is_reminded)


def test_output_comes_by_rank_whole_and_the_two_streams_stay_apart(hosts):
    worker = RANK + 'print("out", rank); print("err", rank, file=sys.stderr); print("x" * 3000000 + "end")'
    code, stdout, stderr = finish(hosts(f"{A}:1,{B}:1", worker=worker))
    assert code == 0
    assert sorted(without_reminder(stderr)) == ["[0] err 0", "[1] err 1"]
    for rank in (0, 1):
        lines = [line for line in stdout if line.startswith(f"[{rank}] ")]
        assert lines[0] == f"[{rank}] out {rank}"
        assert "".join(line[4:] for line in lines[1:]) == "x" * 3000000 + "end"


def test_a_failure_ends_all_hosts_with_its_code_and_last_lines(hosts, tmp_path):
    fail = 'while len(list(__import__("pathlib").Path().glob("pid*"))) < 6: time.sleep(.01)\n'
    fail += 'if rank == 1: print("this is why"); sys.exit(37)\n'
    code, _, stderr = finish(hosts(f"{A}:2,{B}:1", worker=WITH_CHILD + fail + SLEEP))
    assert code == 37
    assert any(re.search(r"rank 1 \(pid [0-9]+ on 127.0.0.2\) failed with exit code 37", line) for line in stderr)
    assert stderr[-2:] == ["[lockstep] rank 1 failed with exit code 37; its last lines:", "[lockstep]   this is why"]
    assert _gone(pids_of(tmp_path, 6))


def test_the_cause_is_named_wherever_it_is(hosts):
    code, _, stderr = finish(hosts(f"{A}:1,{B}:1,localhost:1", worker=ECHO_BEFORE_ITS_CAUSE))
    assert code == 7
    assert re.search(r"\n\[lockstep\] rank 0 \(pid \d+.*\) failed with exit code 7 after ", "\n".join(stderr))
    assert [line for line in stderr if line.endswith("my own error")] == ["[0] my own error"]
    assert sorted(line for line in stderr if line.startswith(("[1]", "[2]"))) == ["[1] rank 0 left", "[2] rank 0 left"]
    assert "the last checkpoint is /c/model.ckpt-5 (step 5)" in stderr[-1]


def test_a_killed_worker_gives_128_plus_the_signal(hosts, tmp_path):
    process = hosts(f"{A}:1,localhost:1", worker=WITH_CHILD + SLEEP)
    pids = pids_of(tmp_path, 4)
    os.kill(int((tmp_path / "pid0").read_text()), signal.SIGKILL)
    code, _, stderr = finish(process)
    assert code == 128 + signal.SIGKILL
    assert any("rank 0 (pid" in line and "was killed by SIGKILL" in line for line in stderr)
    assert _gone(pids)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_workers_everywhere(hosts, tmp_path, signum):
    worker = f'def end(*a): print("saved"); sys.exit(0)\nsignal.signal({int(signum)}, end)\n' + WITH_CHILD + SLEEP
    process = hosts(f"{A}:1,{B}:1,localhost:1", worker=worker)
    pids = pids_of(tmp_path, 6)
    process.send_signal(signum)
    code, stdout, _ = finish(process)
    assert (code, sorted(stdout)) == (0, ["[0] saved", "[1] saved", "[2] saved"])
    assert _gone(pids)


def test_a_second_signal_ends_workers_that_ignore_the_first(hosts, tmp_path):
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    process = hosts(f"{A}:1,{B}:1", worker=ignore + WRITE_PID + SLEEP)
    pids = pids_of(tmp_path, 2)
    process.send_signal(signal.SIGINT)
    assert "still running: rank 0, rank 1" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process)
    assert code == 128 + signal.SIGINT
    assert _gone(pids)


def test_nothing_outlives_a_launcher_that_is_killed(hosts, tmp_path):
    process = hosts(f"{A}:1,{B}:1,localhost:1", worker=WITH_CHILD + SLEEP, variables=PATIENT)
    pids = pids_of(tmp_path, 6) + [_pid(hosts, f"agent.{host}") for host in (A, B)]
    process.kill()
    process.wait(DEADLINE_S)
    _wait_until_gone(pids)


def test_nothing_outlives_a_launcher_that_is_killed_before_the_hosts_have_answered(hosts, tmp_path):
    command = f"sh -c 'echo $$ > {tmp_path}/pid-ssh; exec sleep 600'"
    process = hosts(f"{A}:1,localhost:1", "--ssh-command", command, worker=WRITE_PID)
    pids = pids_of(tmp_path, 1)
    process.kill()
    process.wait(DEADLINE_S)
    _wait_until_gone(pids)
    assert not (tmp_path / "pid1").exists()  # Workers only start when all hosts are ready.


@pytest.mark.parametrize("what", ["agent", "ssh"])
def test_an_agent_that_is_killed_is_named_with_its_ranks(hosts, tmp_path, what):
    process = hosts(f"{A}:1,{B}:2", worker=WITH_CHILD + SLEEP, variables=PATIENT)
    pids = pids_of(tmp_path, 6)
    os.kill(_pid(hosts, f"{what}.{B}"), signal.SIGKILL)
    code, _, stderr = finish(process)
    assert code == LOST
    assert any("was lost with host 127.0.0.3 (ranks 1, 2)" in line for line in stderr)
    _wait_until_gone(pids)


@pytest.mark.parametrize("what", ["agent", "ssh"])
def test_a_host_that_is_frozen_or_cut_off_ends_the_job_in_time(hosts, tmp_path, what):
    """A stopped ssh cuts the network: neither side receives anything."""
    process = hosts(f"localhost:1,{B}:2", worker=WITH_CHILD + SLEEP)
    pids = pids_of(tmp_path, 6)
    since = time.monotonic()
    os.kill(_pid(hosts, f"{what}.{B}"), signal.SIGSTOP)
    code, _, stderr = finish(process)
    _wait_until_gone([*pids, _pid(hosts, f"agent.{B}")])
    assert time.monotonic() - since < ENDED_WITHIN_S + LATE_S
    assert code == LOST
    assert any("rank 1 (pid" in line and "was lost with host 127.0.0.3 (ranks 1, 2): " in line for line in stderr)


def test_a_launcher_that_is_frozen_ends_the_workers_in_time(hosts, tmp_path):
    process = hosts(f"localhost:1,{B}:2", worker=WITH_CHILD + SLEEP)
    pids = pids_of(tmp_path, 6)
    since = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    _wait_until_gone([*pids, _pid(hosts, f"agent.{B}")])
    assert time.monotonic() - since < ENDED_WITHIN_S + LATE_S
    process.send_signal(signal.SIGCONT)
    code, _, stderr = finish(process)
    # The agent's last messages may arrive first: it ended the workers by SIGTERM, then by SIGKILL.
    assert code in (LOST, 128 + signal.SIGTERM, 128 + signal.SIGKILL), stderr


def test_a_cut_is_survived(hosts, tmp_path):
    """The job survives a cut that is shorter than the limit of silence; by default, 5 s on emulated hosts."""
    worker = WRITE_PID + 'while not os.path.exists("go"): time.sleep(.05)\nprint("done")\n'
    process = hosts(f"{A}:1,{B}:1", worker=worker, variables=PATIENT)
    pids_of(tmp_path, 2)
    for host in (A, B):
        os.kill(_pid(hosts, f"ssh.{host}"), signal.SIGSTOP)
    time.sleep(2)
    (tmp_path / "go").touch()
    time.sleep(0.2)
    for host in (A, B):
        os.kill(_pid(hosts, f"ssh.{host}"), signal.SIGCONT)
    code, stdout, stderr = finish(process)
    assert (code, sorted(stdout), without_reminder(stderr)) == (0, ["[0] done", "[1] done"], [])


def test_a_reader_who_takes_his_time_loses_nothing(hosts):
    """The job survives a reader that stops for longer than the limit of silence."""
    worker = 'for i in range(20000): print(i, "x" * 100)\n'
    process = hosts(f"{A}:1", worker=worker)
    time.sleep(10)
    code, stdout, stderr = finish(process)
    assert (code, len(stdout), stderr) == (0, 20000, [])


def test_a_reader_that_goes_away_ends_the_job(hosts, tmp_path):
    process = hosts(f"{A}:1,{B}:1", worker=WRITE_PID + 'while True: print("more"); time.sleep(.01)\n')
    pids = pids_of(tmp_path, 2)
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 128 + signal.SIGPIPE
    assert _gone(pids)


def test_the_secret_is_on_no_command_line_and_in_no_file(hosts, tmp_path):
    process = hosts(f"{A}:1,localhost:1", worker=WRITE_PID + 'print(os.environ["LOCKSTEP_SECRET"])\n' + SLEEP)
    secret = process.stdout.readline().split()[1].encode()
    assert len(secret) == 64
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert secret not in path.read_bytes(), path
        except OSError:
            continue
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes(), path
    process.send_signal(signal.SIGTERM)
    finish(process)


@pytest.mark.parametrize(
    ("names", "options", "code", "message"),
    [
        ("a.invalid:1", (), LOST, "host a.invalid cannot be reached: "),
        (f"{A}:1", ("--interface", "no0"), 2, "host 127.0.0.2: network interface 'no0' does not exist or is down; "),
        (
            "localhost:1",
            ("--interface", "no0"),
            2,
            f"network interface 'no0' does not exist or is down; {os.uname().nodename} has lo (127",
        ),
        (
            "localhost:1,b:1",
            ("--interface", "10.255.0.0/30"),
            2,
            "no network interface has network 10.255.0.0/30; ",
        ),
        (f"{A}:1", ("--ssh-command", "no-such-ssh"), 2, "host 127.0.0.2: cannot run 'no-such-ssh': No such file"),
        (f"{A}:1", ("--restarts", "-1"), 2, "--restarts -1: wanted 0 or more"),
        ("a:1,b:2", ("-n", "3"), 2, "-n 3 applies to hosts without a number of workers, but all hosts have one"),
        ("localhost:1", ("-n", "0"), 2, "-n 0: wanted 1 or more workers"),
        ("a:0", (), 2, "hosts 'a:0': a has no slots; wanted 1 or more"),
        ("a b", (), 2, "hosts 'a b': got 'a b', wanted host:slots"),
    ],
)
def test_a_request_that_cannot_be_met_says_why(hosts, names, options, code, message):
    got, stdout, stderr = finish(hosts(names, *options, worker="pass"))
    assert (got, stdout) == (code, [])
    assert message in stderr[-1]


def test_a_command_that_a_host_does_not_have_is_refused(hosts):
    code, _, stderr = finish(hosts(f"{A}:1", "no-such-program"))
    assert (code, stderr[-1]) == (
        127,
        "lockstep.launch: host 127.0.0.2: cannot run 'no-such-program': No such file or directory",
    )


def test_a_signal_before_the_hosts_have_answered_ends_the_launcher(hosts, tmp_path):
    process = hosts(f"{A}:1", "--ssh-command", f"sh -c 'echo $$ > {tmp_path}/pid-ssh; exec sleep 600'", worker="pass")
    pids = pids_of(tmp_path, 1)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 128 + signal.SIGTERM
    assert _gone(pids)


# Promise (launching.md): `--restarts` starts the job again on all hosts.
def test_a_job_begins_anew_on_all_hosts(hosts):
    worker = RANK + 'k = os.environ["LOCKSTEP_RESTART"]; print(k + " " + os.environ["LOCKSTEP_SECRET"])\n'
    worker += 'if k == "0": sys.exit(5 * rank) if rank else time.sleep(600)\nif k == "1": os.kill(os.getpid(), 9)\n'
    code, stdout, stderr = finish(hosts(f"{A}:1,{B}:1", "--restarts", "3", worker=worker))
    assert code == 0
    assert {line.split()[1] for line in stdout} == {"0", "1", "2"}
    assert len({line.split()[2] for line in stdout}) == 3
    said = [line for line in stderr if "restart" in line]
    assert said[0] == "[lockstep] rank 1 failed with exit code 5: restart 1 of 3 in 1 s"
    assert re.fullmatch(r"\[lockstep\] rank [01] was killed by SIGKILL: restart 2 of 3 in 2 s", said[1])
