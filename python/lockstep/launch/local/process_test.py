"""How workers are started. Forks are made in programs of a few lines: this process may have threads of TensorFlow."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.local.process import command_starter, not_executable, open_files
from lockstep.testing.launching import DEADLINE_S

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def _run(command, environment=None):
    """Runs a command as a worker; returns its exit code, its stdout and its stderr."""
    process = command_starter(command)({**os.environ, **(environment or {})}, ())
    with process.stdout, process.stderr, process.notes:
        return process.wait(), process.stdout.read(), process.stderr.read()


def test_a_command_has_its_environment_no_input_and_a_group_of_its_own():
    code = "import os, sys; print(os.environ['X'], repr(sys.stdin.read()), os.getpgid(0) == os.getpid()); sys.exit(7)"
    assert _run([sys.executable, "-c", code], {"X": "x"}) == (7, b"x '' True\n", b"")


def test_a_command_inherits_the_pipe_for_its_notes_and_no_other_file(tmp_path):
    with open(tmp_path / "other", "w") as other:
        os.set_inheritable(other.fileno(), True)
        code = (
            "import os, sys; print(*(f for f in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{f}')))"
        )
        show = f"{code}; print(os.environ['LOCKSTEP_NOTES'].partition(':')[0])"
        _, stdout, _ = _run([sys.executable, "-c", show])
    files, noted = stdout.decode().splitlines()
    assert sorted(files.split(), key=int) == ["0", "1", "2", noted]


@pytest.mark.parametrize(
    ("number", "exit_code", "message"),
    [
        (errno.ENOENT, 127, "cannot run 'x': No such file or directory"),
        (errno.EACCES, 126, "cannot run 'x': Permission denied"),
        (errno.ENOEXEC, 126, "cannot run 'x': Exec format error"),
    ],
)
def test_a_program_that_is_not_executed_has_a_shells_exit_code(number, exit_code, message):
    refused = not_executable("x", OSError(number, os.strerror(number)))
    assert (str(refused), refused.exit_code) == (message, exit_code)


def test_a_program_of_python_is_told_how_it_is_run(tmp_path):
    (tmp_path / "train.py").write_text("")
    program = str(tmp_path / "train.py")
    with pytest.raises(LaunchError, match=f"Permission denied; to run it with Python: python {program}$"):
        command_starter([program])({}, ())
    with pytest.raises(LaunchError, match="No such file or directory$"):
        command_starter([program + "x.py"])({}, ())


@pytest.mark.parametrize(("program", "exit_code"), [("no-such-program", 127), ("/etc/passwd", 126)])
def test_nothing_stays_open_of_a_command_that_cannot_be_run(program, exit_code):
    before = open_files()
    with pytest.raises(LaunchError, match=f"^cannot run {program!r}: ") as refused:
        command_starter([program])({}, ())
    assert refused.value.exit_code == exit_code
    assert open_files() == before


def test_open_files_are_those_of_this_process():
    read, write = os.pipe()
    assert {read, write} <= open_files()
    os.close(read)
    os.close(write)
    assert not {read, write} & open_files()


_FORK = """
import os, signal, sys
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.local.process import call_starter, open_files
"""


def _program(text: str) -> list[str]:
    command = [sys.executable, "-c", _FORK + text]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE_S).stdout.splitlines()


@pytest.mark.parametrize(
    ("body", "code", "stdout", "stderr"),
    [
        ("print('done')", 0, "done\n", ""),
        ("sys.exit(3)", 3, "", ""),
        ("sys.exit(None)", 0, "", ""),
        ("sys.exit(256 + 4)", 4, "", ""),
        ("sys.exit('why')", 1, "", "why\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "", "KeyboardInterrupt\n"),
        ("1 / 0", 1, "", "ZeroDivisionError: division by zero\n"),
        ("os.kill(os.getpid(), 9)", -9, "", ""),
        ("print('out'); os._exit(5)", 5, "out\n", ""),
    ],
)
def test_a_function_ends_with_the_code_and_the_words_of_a_program(body, code, stdout, stderr):
    lines = _program(
        f"def work(): {body}\n"
        "process = call_starter(work)(os.environ, open_files())\n"
        "print(repr((process.wait(), process.stdout.read().decode(), process.stderr.read().decode())))\n"
    )
    got_code, got_stdout, got_stderr = eval(lines[-1])
    assert (got_code, got_stdout) == (code, stdout)
    assert got_stderr.endswith(stderr) if stderr else not got_stderr


def test_a_fork_that_is_refused_leaves_no_signal_blocked_and_no_file_open():
    lines = _program(
        "def refuse(): raise OSError(11, 'Resource temporarily unavailable')\n"
        "before, os.fork = open_files(), refuse\n"
        "try: call_starter(print)(os.environ, before)\n"
        "except LaunchError as error: print(error)\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), open_files() == before)\n"
    )
    assert lines == ["cannot fork this process: Resource temporarily unavailable", "set() True"]
