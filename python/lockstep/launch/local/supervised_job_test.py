"""The launcher as its users see it: a process with workers below it. Workers are programs of a few lines."""

# Promise of this file (launching.md): a job ends, handles signals and prints as one program does.

import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lockstep.testing.launching import (
    DEADLINE_S,
    ECHO_BEFORE_ITS_CAUSE,
    RANK,
    SLEEP,
    WITH_CHILD,
    WITH_DAEMON,
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

# The longest time from a worker's failure to the end of the job: the launcher's promise and a margin for a busy
# machine. Without the launcher workers run for 600 s.
ENDED_WITHIN_S = 5.0 + 55.0


def _seconds_since_failure(folder: Path) -> float:
    """Returns the time since a worker ran `_fail`. Linux has one monotonic clock for all processes."""
    return time.monotonic() - float((folder / "failed_at").read_text())


def _fail(rank: int, code: int) -> str:
    """Returns code for workers: the one with this rank writes the time, and fails."""
    return f'if rank == {rank}: open("failed_at", "w").write(str(time.monotonic())); sys.exit({code})\n'


def _wait_for_pids(count: int) -> str:
    """Returns code for workers: each waits until `count` processes have written their numbers."""
    return (
        f'while sum(os.path.getsize(f) > 0 for f in os.listdir() if f.startswith("pid")) < {count}: time.sleep(.01)\n'
    )


def test_output_is_prefixed_by_rank_and_the_two_streams_stay_apart(launch):
    code, stdout, stderr = finish(
        launch("-n", "3", worker='r = os.environ["LOCKSTEP_RANK"]; print("out", r); print("err", r, file=sys.stderr)')
    )
    assert code == 0
    assert sorted(stdout) == ["[0] out 0", "[1] out 1", "[2] out 2"]
    assert sorted(without_reminder(stderr)) == ["[0] err 0", "[1] err 1", "[2] err 2"]


def test_output_arrives_while_the_workerruns(launch):
    process = launch("-n", "2", worker='print("started")\n' + SLEEP)
    assert process.stdout.readline().endswith("] started\n")


# Promise (hybridbackend.md): they are ended, with its exit code (HybridBackend: workers continue after a failure).
def test_a_failure_ends_the_job_with_its_code_and_last_lines(launch, tmp_path):
    fail = _wait_for_pids(6) + 'if rank == 1: print("this is why")\n' + _fail(1, 37)
    code, _, stderr = finish(launch("-n", "3", worker=WITH_CHILD + fail + SLEEP))
    assert _seconds_since_failure(tmp_path) < ENDED_WITHIN_S
    assert code == 37
    assert any("rank 1" in line and "exit code 37" in line and "ending the other workers" in line for line in stderr)
    assert stderr[-2:] == ["[lockstep] rank 1 failed with exit code 37; its last lines:", "[lockstep]   this is why"]
    assert not [pid for pid in pids_of(tmp_path, 6) if runs(pid)]


@pytest.mark.parametrize("lines", [5, 30])
def test_last_lines_are_repeated_only_if_they_are_out_of_view(launch, lines):
    worker = f"""
def wait_for(name):
    while not os.path.exists(name): time.sleep(.01)
if rank == 1:
    print("this is why", file=sys.stderr)
    open("failing", "w")
    wait_for("hidden")
    sys.exit(3)
wait_for("failing")
for number in range({lines}): print(number, file=sys.stderr)
open("hidden", "w")
"""
    code, _, stderr = finish(launch("-n", "2", worker=RANK + worker + SLEEP))
    assert code == 3
    assert sum(line.endswith("this is why") for line in stderr) == (1 if lines == 5 else 2)


def test_a_failure_ends_workers_that_ignore_every_signal_but_kill(launch, tmp_path):
    stubborn = "for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)\n"
    fail = _wait_for_pids(2) + _fail(0, 3)
    code, _, _ = finish(launch("-n", "2", worker=stubborn + WRITE_PID + fail + SLEEP))
    assert _seconds_since_failure(tmp_path) < ENDED_WITHIN_S
    assert code == 3
    assert not [pid for pid in pids_of(tmp_path, 2) if runs(pid)]


def test_a_failure_ends_stopped_workers_in_their_own_way(launch, tmp_path):
    is_stopped = "open('/proc/' + open('pid1').read() + '/stat').read().rpartition(')')[2].split()[0] == 'T'"
    worker = WRITE_PID + (
        f"if rank == 0:\n  {_wait_for_pids(2)}"
        f"  while not ({is_stopped}): time.sleep(.01)\n"
        "  sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, lambda *_: (open('obeyed', 'w'), sys.exit(0)))\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    code, _, _ = finish(launch("-n", "2", worker=worker + SLEEP))
    assert code == 3
    assert (tmp_path / "obeyed").exists()


def test_a_killed_worker_gives_128_plus_the_signal_and_is_named(launch, tmp_path):
    process = launch("-n", "2", worker=WRITE_PID + SLEEP)
    pids_of(tmp_path, 2)
    killed_at = time.monotonic()
    os.kill(int((tmp_path / "pid1").read_text()), signal.SIGKILL)
    code, _, stderr = finish(process)
    assert time.monotonic() - killed_at < ENDED_WITHIN_S
    assert code == 128 + signal.SIGKILL
    assert any("rank 1 (pid" in line and "was killed by SIGKILL" in line for line in stderr)


def test_the_cause_is_named_and_not_a_rank_that_ended_because_of_it_however_late(launch, tmp_path):
    code, _, stderr = finish(launch("-n", "3", worker=ECHO_BEFORE_ITS_CAUSE))
    assert code == 7
    assert re.fullmatch(r"\[lockstep\] rank 0 \(pid \d+\) failed with exit code 7 after .*", stderr[-2])
    assert stderr[-1] == (
        "[lockstep] the job has failed; the last checkpoint is /c/model.ckpt-5 (step 5): the same command continues "
        "from there"
    )
    assert [line for line in stderr if line.endswith("my own error")] == ["[0] my own error"]
    assert sorted(line for line in stderr if line.startswith(("[1]", "[2]"))) == ["[1] rank 0 left", "[2] rank 0 left"]


def test_where_all_have_lost_another_the_first_is_named_with_its_traceback(launch):
    worker = (
        "from lockstep.launch.base import notes\n"
        'notes.say({"is": "failed", "because": "peer", "error": "lost", "trace": "File a\\nError: lost"})\n'
        "sys.exit(1)\n"
    )
    code, _, stderr = finish(launch("-n", "2", worker=worker))
    assert code == 1
    assert stderr[-2:] == ["[lockstep]   File a", "[lockstep]   Error: lost"]


# The line that reports workers which exchanged nothing; `lockstep.launch` writes nothing else after a good end.
_REMINDER = re.compile(r"\[lockstep\] the 2 workers exchanged nothing: .* inside lockstep\.scope\(\) .*")
_TELLS = RANK + "from lockstep.launch.base import notes\n"


# Promise (launching.md): workers that exchanged nothing are reported.
@pytest.mark.parametrize(
    ("worker", "is_said"),
    [
        ("pass", True),
        (_TELLS + 'notes.say({"is": "joined"})', False),
        (_TELLS + 'if rank: notes.say({"is": "joined"})', False),
        (_TELLS + 'notes.say({"is": "joined"}); notes.say({"is": "left", "collectives": 1})', False),
        (_TELLS + 'notes.say({"is": "joined"}); notes.say({"is": "left", "collectives": 0})', True),
    ],
    ids=["nothing", "joined", "one joined", "exchanged", "only joined"],
)
def test_a_job_whose_workers_exchanged_nothing_is_told_so(launch, worker, is_said):
    code, _, stderr = finish(launch("-n", "2", worker=worker))
    assert code == 0
    assert [bool(_REMINDER.fullmatch(line)) for line in stderr] == [True] * is_said, stderr


def test_neither_a_failed_job_nor_one_worker_is_told_so(launch):
    for options, worker in ((("-n", "2"), "sys.exit(3)"), (("-n", "1"), "pass"), (("-n", "1", "--quiet"), "pass")):
        assert "exchanged nothing" not in "".join(finish(launch(*options, worker=worker))[2])


@pytest.mark.parametrize(
    ("deleted", "said"),
    [
        (["second"], "the last checkpoint is first (step 1): the same command continues from there"),
        (["first", "second"], "no checkpoint is left: the program deleted all that it saved"),
    ],
)
def test_a_deleted_checkpoint_is_not_named(launch, deleted, said):
    worker = f"""
from lockstep.launch.base import notes
if rank:
    time.sleep(600)
for name in ("first", "second"):
    open(name, "w").close()
    notes.say_saved(name, step=1, resumes=True, data=True)
for name in {deleted}:
    os.remove(name)
sys.exit(5)
"""
    code, _, stderr = finish(launch("-n", "2", worker=RANK + worker))
    assert (code, stderr[-1]) == (5, f"[lockstep] the job has failed; {said}")


def test_what_failed_workers_wrote_last_is_not_lost(launch):
    code, stdout, _ = finish(launch("-n", "2", worker=RANK + 'print("x" * 50000 + "end"); os._exit(rank)'))
    assert code == 1
    assert sorted(len(line) for line in stdout if line.endswith("end"))[-1:] == [len("[1] ") + 50003]


def test_workers_that_end_well_leave_the_others_running(launch):
    worker = """
if rank == 0:
    open("new", "w").write(str(os.getpid()))
    os.rename("new", "pid0")
else:
    while not os.path.exists("pid0"): time.sleep(.01)
    state = "/proc/" + open("pid0").read() + "/stat"
    while os.path.exists(state) and open(state).read().rpartition(")")[2].split()[0] != "Z": time.sleep(.01)
    time.sleep(.5)  # The launcher gets the signal too, and does nothing.
print(rank)
"""
    code, stdout, _ = finish(launch("-n", "2", worker=RANK + worker))
    assert (code, sorted(stdout)) == (0, ["[0] 0", "[1] 1"])


@pytest.mark.parametrize("program", [WITH_CHILD, WITH_DAEMON], ids=["child", "daemon"])
def test_processes_that_a_finished_worker_left_behind_are_ended(launch, tmp_path, program):
    code, _, _ = finish(launch("-n", "2", worker=program))
    assert code == 0
    assert not [pid for pid in pids_of(tmp_path, 4) if runs(pid)]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_the_workers(launch, tmp_path, signum):
    process = launch("-n", "2", worker="signal.signal(signal.SIGINT, signal.SIG_DFL)\n" + WITH_CHILD + SLEEP)
    pids = pids_of(tmp_path, 4)
    process.send_signal(signum)
    code, _, _ = finish(process)
    assert code == 128 + signum
    assert not [pid for pid in pids if runs(pid)]


def test_workers_may_end_in_their_own_way_on_a_signal(launch, tmp_path):
    handle = 'def save(*a): time.sleep(.3); print("saved"); sys.exit(0)\nsignal.signal(signal.SIGTERM, save)\n'
    process = launch("-n", "2", worker=handle + WRITE_PID + SLEEP)
    pids_of(tmp_path, 2)
    process.send_signal(signal.SIGTERM)
    code, stdout, _ = finish(process)
    assert (code, sorted(stdout)) == (0, ["[0] saved", "[1] saved"])


def test_a_second_interrupt_ends_workers_that_ignore_the_first(launch, tmp_path):
    ignore = 'signal.signal(signal.SIGINT, lambda *a: print("no", flush=True))\n'
    process = launch("-n", "2", worker=ignore + WRITE_PID + SLEEP)
    pids_of(tmp_path, 2)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().endswith("no\n")
    process.send_signal(signal.SIGINT)
    code, _, stderr = finish(process)
    assert code == 128 + signal.SIGINT
    assert stderr[-1] == "[lockstep] ended by SIGINT"


def test_who_goes_on_after_a_signal_is_named(launch, tmp_path):
    """A worker in an exchange that hangs does not notice the first signal; the user may not know of the second."""
    ends = "signal.signal(signal.SIGINT, lambda *a: sys.exit(0)) if os.environ['LOCKSTEP_RANK'] == '0' else "
    process = launch("-n", "2", worker=ends + "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + WRITE_PID + SLEEP)
    pids_of(tmp_path, 2)
    process.send_signal(signal.SIGINT)
    said = process.stderr.readline()
    assert said.startswith("[lockstep] SIGINT was forwarded; still running: rank 1. Send it again to kill them, or ")
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process)
    assert code == 128 + signal.SIGINT


def test_workers_that_ignore_an_interrupt_are_ended_without_another(launch, tmp_path):
    ignore = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    process = launch("-n", "2", worker=ignore + WRITE_PID + SLEEP, variables={"LOCKSTEP_INTERRUPT_TIMEOUT": "1"})
    pids = pids_of(tmp_path, 2)
    process.send_signal(signal.SIGINT)
    code, _, stderr = finish(process)
    assert code == 128 + signal.SIGINT
    assert stderr[0] == "[lockstep] SIGINT was forwarded 1 s ago; ending rank 0, rank 1"
    assert not [pid for pid in pids if runs(pid)]


def test_user_signals_are_forwarded(launch, tmp_path):
    handle = 'def stop(*a): print("usr1"); sys.exit(0)\nsignal.signal(signal.SIGUSR1, stop)\n'
    process = launch("-n", "2", worker=handle + WRITE_PID + SLEEP)
    pids_of(tmp_path, 2)
    process.send_signal(signal.SIGUSR1)
    code, stdout, _ = finish(process)
    assert (code, sorted(stdout)) == (0, ["[0] usr1", "[1] usr1"])


@pytest.mark.parametrize("program", [WITH_CHILD, WITH_DAEMON], ids=["child", "daemon"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_nothing_outlives_a_launcher_that_dies(launch, tmp_path, signum, program):
    process = launch("-n", "2", worker=program + SLEEP)
    pids = pids_of(tmp_path, 4)
    process.send_signal(signum)
    process.wait(DEADLINE_S)
    wait_for(lambda: not [pid for pid in pids if runs(pid)], "the workers and their children to end")


def test_a_reader_that_goes_away_ends_the_job(launch, tmp_path):
    process = launch("-n", "2", worker=WRITE_PID + 'while True: print("more"); time.sleep(.01)\n')
    pids = pids_of(tmp_path, 2)
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 128 + signal.SIGPIPE
    assert not [pid for pid in pids if runs(pid)]


def test_a_full_disk_behind_the_output_does_not_end_the_job(launch):
    with open("/dev/full", "wb") as full:
        process = launch("-n", "2", worker=RANK + 'print("x" * 99999); sys.exit(3 * rank)', stdout=full)
        stderr = process.communicate(timeout=DEADLINE_S)[1].splitlines()
    assert process.returncode == 3
    assert stderr[0] == ("[lockstep] stdout: No space left on device; output to it is lost; the job continues")


def test_workers_save_though_their_terminal_is_gone(launch, tmp_path):
    """A terminal that closes sends SIGHUP to the launcher; later writes to it fail with EIO."""
    handle = (
        "def save(*a):\n"
        "  for i in range(50): print('saving'); print('saving', file=sys.stderr); time.sleep(.01)\n"
        "  open(f'saved{rank}', 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGHUP, save)\n"
    )
    master, terminal = pty.openpty()
    process = launch("-n", "2", worker=RANK + handle + WRITE_PID + SLEEP, stdout=terminal, stderr=terminal)
    os.close(terminal)
    pids = pids_of(tmp_path, 2)
    os.close(master)
    process.send_signal(signal.SIGHUP)
    assert process.wait(DEADLINE_S) == 0
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]
    assert not [pid for pid in pids if runs(pid)]


def test_workers_may_save_when_nobody_reads_any_more(launch, tmp_path):
    handle = "def save(*a): time.sleep(.3); open(f'saved{rank}', 'w').close(); sys.exit(0)\n"
    handle += "signal.signal(signal.SIGTERM, save)\n"
    process = launch("-n", "2", worker=RANK + handle + WRITE_PID + 'while True: print("more"); time.sleep(.01)\n')
    pids_of(tmp_path, 2)
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 128 + signal.SIGPIPE
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]


def test_workers_that_go_on_without_a_reader_are_ended(launch, tmp_path):
    worker = WRITE_PID + 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: print("more"); time.sleep(.01)\n'
    process = launch("-n", "2", worker=worker, variables={"LOCKSTEP_INTERRUPT_TIMEOUT": "1"})
    pids = pids_of(tmp_path, 2)
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 128 + signal.SIGPIPE
    assert not [pid for pid in pids if runs(pid)]


def test_workers_save_and_print_more_than_a_pipe_holds_without_a_reader(launch, tmp_path):
    save = "def save(*a): os.write(1, b'saving' * 99999); open(f'saved{rank}', 'w').close(); os._exit(0)\n"
    save += "signal.signal(signal.SIGTERM, save)\n"
    worker = RANK + save + WRITE_PID + 'while True: print("more"); time.sleep(.01)\n'
    process = launch("-n", "2", worker=worker, variables={"LOCKSTEP_INTERRUPT_TIMEOUT": str(2 * DEADLINE_S)})
    pids_of(tmp_path, 2)
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 128 + signal.SIGPIPE
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]


def test_workers_read_no_input(launch):
    process = launch("-n", "2", worker="print(repr(sys.stdin.read()))", stdin=subprocess.PIPE)
    code, stdout, _ = finish(process)
    assert (code, sorted(stdout)) == (0, ["[0] ''", "[1] ''"])
