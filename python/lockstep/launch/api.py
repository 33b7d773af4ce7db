"""The function with which a program starts workers."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from lockstep.launch.base.environment import replaced_environment
from lockstep.launch.base.known_lines import holds_start_up_lines
from lockstep.launch.base.output import Console
from lockstep.launch.cli import tf1_command
from lockstep.launch.local import attempts
from lockstep.launch.local.attempts import check_restarts
from lockstep.launch.local.guard import die_with
from lockstep.launch.local.process import call_starter, command_starter, not_executable
from lockstep.launch.local.supervised_job import SupervisedJob, check_thread
from lockstep.launch.placement import plan


def run(
    command: Sequence[str] | Callable[[], object], *, workers: int | None = None, restarts: int | None = None
) -> None:
    """Runs a function or a command on the workers of this machine, and returns when all have ended.

    This follows HybridBackend's `hybridbackend.run.run`. Devices, TF_CONFIG, steps of Slurm, the workers' variables,
    the output and the end of a job are as with `python -m lockstep.launch` (docs/launching.md).

    Args:
      command: A function without arguments, or a command such as ["python", "main.py"]. Several workers each call the
        function in a fork of this process; a single worker calls it in this process.
      workers: The number of workers on this machine, like `-n`; by default one for each visible GPU, or one.
      restarts: How often several workers are restarted when one has failed, like `--restarts`; never by default.

    Raises:
      LaunchError: the request cannot be met; the message says why.
      SystemExit: a worker failed, with the worker's exit code. An exception of a function that runs in this process is
        raised unchanged.
      TypeError: `command` is neither a function nor a command.
    """
    function = command if callable(command) else None
    words = _words(command) if function is None else []
    check_thread("run")
    # The output of this program must come before its workers' output.
    sys.stdout.flush()
    sys.stderr.flush()
    environment = dict(os.environ)
    console = Console(holds_start_up=holds_start_up_lines(environment))
    times = check_restarts(restarts)
    environments = plan.environments(workers, attempts.attempt_environment(environment, times, 0), console)
    if words and tf1_command.wants_tf1(False, environment):
        words = tf1_command.as_tf1(words)
    if len(environments) > 1:
        start = command_starter(words) if function is None else call_starter(function)
        planned = [environments]

        def make_job(attempt: int) -> SupervisedJob:
            variables = attempts.attempt_environment(environment, times, attempt)
            return SupervisedJob(
                start, planned.pop() if planned else plan.environments(workers, variables, console), console
            )

        job, code = attempts.run_attempts(make_job, times, console)
        attempts.remind_of_scope(job, code, console)
    elif function is not None:
        with replaced_environment(environments[0]):
            function()
        return
    else:
        code = _run_alone(words, environments[0])
    if code:
        raise SystemExit(code)


def _words(command: object) -> list[str]:
    if isinstance(command, (list, tuple)) and command and all(isinstance(word, (str, os.PathLike)) for word in command):
        return [os.fspath(word) for word in command]
    raise TypeError(f"run: got {command!r}, wanted a function or a command like ['python', 'main.py']")


def _run_alone(words: list[str], environment: Mapping[str, str]) -> int:
    """Runs a single worker's command with this process's terminal and input; returns its exit code."""
    launcher = os.getpid()
    try:
        code = subprocess.call(words, env=environment, preexec_fn=lambda: die_with(launcher))
    except OSError as error:
        raise not_executable(words[0], error) from None
    return code if code >= 0 else 128 - code
