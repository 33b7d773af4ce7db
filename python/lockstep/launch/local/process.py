"""Starts a worker's process, which runs a command, or calls a function in a fork of this process."""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lockstep.launch.base import notes
from lockstep.launch.base.environment import replace_environment
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.local.guard import die_with

_THREADS = Path("/proc/self/task")
# The prefix of TensorFlow's names for the threads that it starts with its first session.
_TENSORFLOWS_THREADS = "tf_"


class Process(Protocol):
    """A worker's process, which leads a process group of its own: the part of `subprocess.Popen` that is used.

    Attributes:
      pid: Its number.
      stdout: The reading end of its stdout.
      stderr: The reading end of its stderr.
      notes: The reading end of its notes (`notes`).
      mark: Its value of LOCKSTEP_NOTES.
    """

    pid: int
    stdout: Any
    stderr: Any
    notes: Any
    mark: str

    def wait(self) -> int:
        """Waits for its end, and frees its number."""


# Starts a worker with an environment. The numbers name the files that were open before the launcher opened any.
Start = Callable[[Mapping[str, str], Collection[int]], Process]


def open_files() -> frozenset[int]:
    """Returns the numbers of the files that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # The folder itself was open, and is closed now.
            os.fstat(int(name))
            found.add(int(name))
    return frozenset(found)


class _Program(subprocess.Popen[bytes]):
    """A process that runs a program."""

    notes: Any
    mark: str


def command_starter(command: Sequence[str]) -> Start:
    """Returns a function that starts a worker which runs a command."""

    def start(environment: Mapping[str, str], inherited: Collection[int]) -> Process:
        del inherited  # A program gets the three standard files.
        launcher = os.getpid()
        read, write = notes.open_pipe()
        mark = notes.name_of(write)
        try:
            process = _Program(
                command,
                env={**environment, notes.VARIABLE: mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(write,),
                preexec_fn=lambda: die_with(launcher),
            )
        except OSError as error:
            os.close(read)
            raise not_executable(command[0], error) from None
        finally:
            os.close(write)
        process.notes = os.fdopen(read, "rb", buffering=0)
        process.mark = mark
        return process

    return start


def not_executable(program: str, error: OSError) -> LaunchError:
    """Returns the error for a program that the system does not execute, with a shell's exit codes."""
    advice = f"; to run it with Python: python {program}" if program.endswith(".py") and os.path.exists(program) else ""
    code = 127 if isinstance(error, FileNotFoundError) else 126
    return LaunchError(f"cannot run {program!r}: {error.strerror}{advice}", code)


def call_starter(function: Callable[[], object]) -> Start:
    """Returns a function that starts a worker which calls a function, in a fork of this process.

    The function need not be importable.

    Raises:
      LaunchError: TensorFlow runs in this process already; its threads would be missing in the forks.
    """
    if _tensorflow_works():
        raise LaunchError(
            "TensorFlow already runs in this process. Workers that call a function are forks, which must be made "
            "before it starts: create tensors, datasets and sessions in the function, or run a command"
        )

    def start(environment: Mapping[str, str], inherited: Collection[int]) -> Process:
        launcher = os.getpid()
        with contextlib.suppress(AttributeError):  # Without a console (pythonw) they are None.
            sys.stdout.flush()
            sys.stderr.flush()
        stdout, stderr, noted = os.pipe(), os.pipe(), notes.open_pipe()
        mark = notes.name_of(noted[1])
        variables = {**environment, notes.VARIABLE: mark}
        # Until `_settle` is done, the fork would treat a signal as one of the launcher's, and report it to the
        # launcher.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    die_with(launcher)
                    _settle(variables, {*inherited, noted[1]}, stdout[1], stderr[1])
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                    code = _call(function)
                finally:
                    os._exit(code)
        except OSError as error:
            for read, _ in (stdout, stderr, noted):
                os.close(read)
            raise LaunchError(f"cannot fork this process: {error.strerror}", 126) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for _, write in (stdout, stderr, noted):
                os.close(write)
        return _Fork(pid, stdout[0], stderr[0], noted[0], mark)

    return start


def _tensorflow_works() -> bool:
    """Returns whether TensorFlow has started threads in this process.

    TensorFlow 2.15 gives its threads no names; there only the context of eager mode shows it.
    """
    eager = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if getattr(eager, "_context_handle", None) is not None:
        return True
    for thread in _THREADS.iterdir():
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            if (thread / "comm").read_text().startswith(_TENSORFLOWS_THREADS):
                return True
    return False


class _Fork:
    """A fork of this process, which runs the same program."""

    def __init__(self, pid: int, stdout: int, stderr: int, noted: int, mark: str):
        self.pid, self.mark = pid, mark
        self.stdout, self.stderr, self.notes = (os.fdopen(pipe, "rb", buffering=0) for pipe in (stdout, stderr, noted))

    def wait(self) -> int:
        """Waits, as `subprocess.Popen.wait`."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _settle(environment: Mapping[str, str], inherited: Collection[int], stdout: int, stderr: int) -> None:
    """Makes a fork of the launcher a worker: closes the launcher's files, and resets its signal handlers."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        # As in a program that was executed; SIGINT gets the handler that Python installs at its start.
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, stdout), (2, stderr)):
        os.dup2(source, target)
    for descriptor in open_files() - set(inherited) - {0, 1, 2}:
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(descriptor, mode, 1, closefd=False) for descriptor, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    replace_environment(environment)
    atexit._clear()  # Functions that the launcher's program registered must not run in workers.


def _call(function: Callable[[], object]) -> int:
    """Calls a function as the interpreter runs a program; returns the exit code."""
    code = 0
    try:
        function()
    except BaseException as error:
        # If the function has joined a job, the other workers must learn how this process ends.
        if (program_end := sys.modules.get("lockstep._src.engine.program_end")) is not None:
            program_end.ends_with(error)
        code = _show(error)
    threading._shutdown()  # type: ignore[attr-defined]  # Waits for threads, as the interpreter does when it exits.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code & 0xFF


def _show(error: BaseException) -> int:
    """Shows the error with which a program ends, as the interpreter does; returns the exit code."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1
