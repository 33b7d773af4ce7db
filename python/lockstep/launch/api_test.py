"""`run`, in programs of a few lines, each a process of its own."""

import json
import os
import signal
import subprocess
import sys

import pytest

from lockstep.launch import LaunchError, run
from lockstep.testing.launching import runs, wait_for, without_reminder

DEADLINE_S = 240
HEAD = "import os, signal, sys, threading, time\nfrom lockstep.launch import LaunchError, run\n"


@pytest.fixture
def program(tmp_path):
    """Returns a function that runs a program, and returns its exit code and the lines of stdout and stderr."""

    def run_it(text: str, **variables: str) -> tuple[int, list[str], list[str]]:
        hidden = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TF_CONFIG", "LOCKSTEP_TF1"}
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        (tmp_path / "program.py").write_text(HEAD + text)
        ended = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return ended.returncode, ended.stdout.splitlines(), ended.stderr.splitlines()

    return run_it


def test_a_function_is_called_by_every_worker_in_its_own_place(program):
    code, stdout, _ = program(
        "where = lambda: print(os.environ['LOCKSTEP_RANK'], os.environ['CUDA_VISIBLE_DEVICES'], os.getpid() == here)\n"
        "here = os.getpid()\n"
        "run(where)\nprint('done', 'LOCKSTEP_RANK' in os.environ)\n",
        CUDA_VISIBLE_DEVICES="3,5",
    )
    assert code == 0
    assert sorted(stdout[:-1]) == ["[0] 0 3 False", "[1] 1 5 False"]
    assert stdout[-1] == "done False"


def test_a_single_worker_is_this_process_with_its_gpu(program):
    code, stdout, _ = program(
        "here = os.getpid()\n"
        "run(lambda: print(os.environ['CUDA_VISIBLE_DEVICES'], os.getpid() == here))\n"
        "print('LOCKSTEP_RANK' in os.environ)\n"
        "try: run(lambda: 1 / 0)\n"
        "except ZeroDivisionError: print('raised')\n",
        CUDA_VISIBLE_DEVICES="3",
    )
    assert (code, stdout) == (0, ["3 True", "False", "raised"])


def test_a_command_is_run_by_every_worker_and_run_returns(program):
    text = "command = [sys.executable, '-c', 'import os; print(os.environ[\"LOCKSTEP_RANK\"])']\n"
    _, stdout, _ = program(text + "run(command, workers=2)\nprint('done')\n")
    assert (sorted(stdout[:-1]), stdout[-1]) == (["[0] 0", "[1] 1"], "done")
    _, stdout, _ = program(text + "run(command)\nprint('done')\n")
    assert stdout == ["0", "done"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_commands_failure_is_the_programs(program, workers):
    code, stdout, _ = program(f"run(['sh', '-c', 'exit 37'], workers={workers})\nprint('not reached')\n")
    assert (code, stdout) == (37, [])


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        ("raise RuntimeError('this is why')", 1, "RuntimeError: this is why"),
        ("sys.exit(37)", 37, ""),
        ("sys.exit('this is why')", 1, "this is why"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL, ""),
        ("raise KeyboardInterrupt", 128 + signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_a_functions_failure_ends_the_others_and_is_the_programs(program, failure, code, said):
    text = f"def work():\n  if os.environ['LOCKSTEP_RANK'] == '1': {failure}\n  time.sleep(600)\n"
    got, stdout, stderr = program(text + "run(work, workers=3)\nprint('not reached')\n")
    assert (got, stdout) == (code, [])
    assert any("rank 1 (pid" in line and "ending the other workers" in line for line in stderr)
    assert any(line.startswith("[1] " + said) for line in stderr) or not said


def test_a_function_ends_as_a_program_does(program):
    text = (
        "import atexit\n"
        "atexit.register(lambda: print('end of the program'))\n"
        "def work():\n"
        "  atexit.register(lambda: print('end of a worker'))\n"
        "  threading.Thread(target=lambda: (time.sleep(.3), print('thread'))).start()\n"
        "  print('no newline', end='')\n"
    )
    code, stdout, _ = program(text + "print('before', end=' ')\nrun(work, workers=2)\n")
    assert code == 0
    assert stdout[0].startswith("before ")
    text = "\n".join(stdout)
    assert (text.count("end of a worker"), text.count("thread"), text.count("before")) == (2, 2, 1)
    assert stdout[-1] == "end of the program"


def test_functions_see_the_callers_files_and_none_of_the_launchers(program):
    code, stdout, _ = program(
        "read, write = os.pipe()\n"
        "before = set(os.listdir('/proc/self/fd'))\n"
        "def work():\n"
        "  os.write(write, b'x')\n"
        "  notes = os.environ['LOCKSTEP_NOTES'].partition(':')[0]\n"
        "  print(sys.stdin.read() == '', set(os.listdir('/proc/self/fd')) <= before | {notes})\n"
        "run(work, workers=2)\nprint(os.read(read, 9))\n"
    )
    assert (code, sorted(stdout)) == (0, ["[0] True True", "[1] True True", "b'xx'"])


def test_functions_take_signals_as_programs_do(program):
    text = (
        "signal.signal(signal.SIGUSR1, lambda *a: print('mine'))\n"
        "def work():\n"
        "  print(*(signal.getsignal(s) is signal.SIG_DFL for s in (signal.SIGTERM, signal.SIGUSR1)))\n"
        "  print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        "run(work, workers=2)\nos.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    _, stdout, _ = program(text)
    assert sorted(stdout) == ["[0] True", "[0] True True", "[1] True", "[1] True True", "mine"]


def test_signals_that_the_program_handles_for_itself_do_not_reach_workers(program):
    """The timer's signals would end a worker, which has no handler for them. No constant names the real-time one."""
    text = (
        "command = ['sh', '-c', 'until [ -e rang ]; do sleep .1; done; echo alive']\n"
        "def ring(*a): open('rang', 'w'); os.kill(os.getpid(), 40)\n"
        "signal.signal(40, lambda *a: None)\n"
        "signal.signal(signal.SIGALRM, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, .2, .1)\n"
        "run(command, workers=2)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"  # Python removes its handlers when it ends.
        "print('done')\n"
    )
    code, stdout, stderr = program(text)
    assert (code, sorted(stdout)) == (0, ["[0] alive", "[1] alive", "done"])
    assert without_reminder(stderr) == []


def test_nothing_outlives_a_program_that_is_killed(tmp_path):
    text = (
        "import subprocess\n"
        "def work():\n"
        "  child = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "  print(os.getpid(), child.pid)\n"
        "  time.sleep(600)\n"
        "run(work, workers=2)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", HEAD + text], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for _ in range(2) for pid in process.stdout.readline().split()[1:]]
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    wait_for(lambda: not [pid for pid in pids if runs(pid)], "the workers and their children to end")
    assert len(pids) == 4


# Promise (hybridbackend.md): it is called, once (HybridBackend: on a parameter server or evaluator, the launcher calls
# a function and then also runs it as a command).
@pytest.mark.parametrize("role", ["evaluator", "ps"])
def test_a_task_beside_the_job_runs_once(program, role):
    config = json.dumps({"cluster": {"chief": ["a:1"], role: ["b:1"]}, "task": {"type": role, "index": 0}})
    text = "run(lambda: print('called', 'LOCKSTEP_RANK' in os.environ), workers=2)\nrun(['echo', 'run'])\n"
    assert program(text, TF_CONFIG=config)[1] == ["called False", "run"]


def test_where_tensorflow_runs_already_a_function_is_refused_and_before_it_works(program):
    text = (
        "import tensorflow as tf\n"
        "from lockstep._src.engine.context import Context\n"
        "def work(): print(Context.get().rank, Context.get().world_size, float(tf.constant(2.0) + 1))\n"
        "print(Context.get().world_size)\n"
        "run(work, workers=2)\n"
        "work()\n"
        "try: run(work, workers=2)\n"
        "except LaunchError as error: print(error)\n"
    )
    code, stdout, stderr = program(text, TF_CPP_MIN_LOG_LEVEL="2")
    assert code == 0, stderr
    assert sorted(stdout[1:3]) == ["[0] 0 2 3.0", "[1] 1 2 3.0"]
    assert stdout[0] == "1" and stdout[3] == "0 1 3.0"
    assert stdout[4].startswith("TensorFlow already runs in this process")


@pytest.mark.parametrize("target", ["true", [], [1], None])
def test_what_is_neither_function_nor_command_is_refused(target):
    with pytest.raises(TypeError, match="wanted a function or a command"):
        run(target)


@pytest.mark.parametrize(
    ("command", "workers", "message"),
    [
        ("true", 0, "-n 0: wanted 1 or more workers"),
        ("no-such-program", 1, "cannot run 'no-such-program'"),
        ("no-such-program", 2, "cannot run 'no-such-program'"),
    ],
)
def test_a_request_that_cannot_be_met_is_an_error(command, workers, message):
    with pytest.raises(LaunchError, match=message):
        run([command], workers=workers)
