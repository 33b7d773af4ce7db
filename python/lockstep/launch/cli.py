"""The launcher's command line."""

import os
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence

from lockstep.launch import command, plan
from lockstep.launch.arguments import CommandLine
from lockstep.launch.errors import LaunchError
from lockstep.launch.folder import open_copies
from lockstep.launch.job import Job
from lockstep.launch.output import Console
from lockstep.launch.process import not_executable, starts_command

_DESCRIPTION = """\
Starts the workers of a job on this machine: one for each GPU in CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES, or N on
the CPU; without either, one. When a worker fails, all are ended, and its exit code is returned.
"""
NO_COMMAND = "no command; wanted one like: python main.py"

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
    line = CommandLine(f"python -m {program}", _DESCRIPTION)
    line.add("-n", "--workers", type=int, metavar="N", help="number of workers on this machine")
    add_tf1(line)
    options, words = line.parse(sys.argv[1:] if arguments is None else arguments)
    if not words:
        line.error(NO_COMMAND)
    environment = dict(os.environ)
    try:
        if prepare is not None:
            words = prepare(words, environment)
        words = program_of(words, options.tf1, environment)
        console = Console()
        return execute(words, plan.environments(options.workers, environment, console), console)
    except LaunchError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code


def add_tf1(line: CommandLine) -> None:
    """Adds the option for programs of TensorFlow 1."""
    line.add("--tf1", action="store_true", help="run the program as a TensorFlow 1 script (also LOCKSTEP_TF1=1)")


def program_of(words: list[str], tf1: bool, environment: Mapping[str, str]) -> list[str]:
    """The command, rewritten for TensorFlow 1 where the option or the environment asks for that.

    Raises:
      LaunchError: no Python program is found in it, or the variable is neither 0 nor 1.
    """
    return command.as_tf1(words) if command.wants_tf1(tf1, environment) else words


def execute(
    words: list[str], environments: Sequence[Mapping[str, str]], console: Console, folder: str | None = None
) -> int:
    """Runs a command on workers with these environments.

    A single one takes our place, and this does not return, unless its output has to be kept or stamped.

    Args:
      words: The command.
      environments: As `plan.environments` gives them.
      console: Where output goes.
      folder: Where it is kept as well (`open_copies`).

    Returns:
      The launcher's exit code.

    Raises:
      LaunchError: the command cannot be executed, or the folder cannot be made.
    """
    if len(environments) == 1 and folder is None and not console.timestamps:
        _become(words, environments[0])
    copies = None if folder is None else open_copies(folder, environments, console)
    return Job(starts_command(words), environments, console, copies).run()


def _become(words: list[str], environment: Mapping[str, str]) -> None:
    """Puts the only worker in our place, as if it had been started without us: its terminal, signals and exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        raise not_executable(words[0], error) from None
