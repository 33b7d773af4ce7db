"""The launcher's command line."""

import argparse
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence

from lockstep.launch import command, plan
from lockstep.launch.errors import LaunchError
from lockstep.launch.job import Job
from lockstep.launch.output import Console
from lockstep.launch.process import not_executable, starts_command

_DESCRIPTION = """\
Starts the workers of a job on this machine: one for each GPU in CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES, or N on
the CPU; without either, one. When a worker fails, all are ended, and its exit code is returned.
"""


# Gives the command to run, and may set defaults in the environment.
Prepare = Callable[[list[str], MutableMapping[str, str]], list[str]]


def main(
    arguments: Sequence[str] | None = None, program: str = "lockstep.launch", prepare: Prepare | None = None
) -> int:
    """Runs a job as the command line says; does not return where the job is a single worker, which takes our place.

    Args:
      arguments: The command line without the program's name; `sys.argv[1:]` by default.
      program: The module's name, for messages.
      prepare: What a façade's launcher does before.

    Returns:
      What the process should exit with: 0, the first failure's exit code, or 2 for a request that cannot be met.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=_DESCRIPTION)
    parser.add_argument("-n", "--workers", type=int, metavar="N", help="number of workers on this machine")
    parser.add_argument(
        "--tf1", action="store_true", help="run the program as a TensorFlow 1 script (also LOCKSTEP_TF1=1)"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="what every worker runs, e.g. python main.py --steps 9"
    )
    options = parser.parse_args(arguments)
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        parser.error("no command; wanted one like: python main.py")
    environment = dict(os.environ)
    try:
        if prepare is not None:
            words = prepare(words, environment)
        return _launch(words, options.workers, options.tf1, environment)
    except LaunchError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code


def _launch(words: list[str], workers: int | None, tf1: bool, environment: MutableMapping[str, str]) -> int:
    if command.wants_tf1(tf1, environment):
        words = command.as_tf1(words)
    console = Console()
    environments = plan.environments(workers, environment, console)
    if len(environments) == 1:
        _become(words, environments[0])
    return Job(starts_command(words), environments, console).run()


def _become(words: list[str], environment: MutableMapping[str, str]) -> None:
    """Puts the only worker in our place, as if it had been started without us: its terminal, signals and exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        raise not_executable(words[0], error) from None
