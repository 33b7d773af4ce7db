"""The command `lockstep`, and `python -m lockstep`.

    lockstep run -n 2 python main.py
    lockstep doctor
    lockstep inspect checkpoints/
    lockstep timeline traces/
    lockstep completion bash

`docs/command.md` is the manual. A subcommand is a row of `SUBCOMMANDS`. Its module is imported only when it is used, so
that `lockstep run` starts as quickly as the launcher itself, and never loads TensorFlow.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep._src.engine.build import buildinfo
from lockstep.launch.base.version import installed_version
from lockstep.launch.cli import completion
from lockstep.launch.cli import main as launcher
from lockstep.launch.cli.arguments import ShowVersion

PROGRAM = "lockstep"


@dataclass(frozen=True)
class Subcommand:
    """A subcommand.

    Attributes:
      summary: One line for the help.
      parser: Returns the parser of its options, without loading TensorFlow.
      main: Runs it with its words, and returns the exit code.
      has_command: Whether its first word that is not an option begins the user's command.
    """

    summary: str
    parser: Callable[[], argparse.ArgumentParser]
    main: Callable[[Sequence[str]], int]
    has_command: bool = False


def _module(summary: str, name: str) -> Subcommand:
    """Returns the subcommand of a module that has the functions `parser` and `main`."""
    return Subcommand(
        summary,
        lambda: importlib.import_module(name).parser(),
        lambda arguments: importlib.import_module(name).main(arguments),
    )


def _run_parser() -> argparse.ArgumentParser:
    return launcher.command_line(f"{PROGRAM} run").parser


def _run(arguments: Sequence[str]) -> int:
    return launcher.main(arguments, f"{PROGRAM} run", spelling=f"{PROGRAM} run")


def _completion_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} completion",
        description=f"Prints a script with which a shell completes `{PROGRAM}`, for example: "
        f'eval "$({PROGRAM} completion bash)" in ~/.bashrc, or {PROGRAM} completion fish > '
        f"~/.config/fish/completions/{PROGRAM}.fish",
    )
    parser.add_argument("shell", choices=completion.SHELLS)
    return parser


def _completion(arguments: Sequence[str]) -> int:
    shell = _completion_parser().parse_args(arguments).shell
    subcommands = {
        name: completion.Subcommand(one.summary, one.parser(), one.has_command) for name, one in SUBCOMMANDS.items()
    }
    print(completion.script(shell, PROGRAM, ["--help", "--version"], subcommands), end="")
    return 0


SUBCOMMANDS = {
    "run": Subcommand("start the workers of a job", _run_parser, _run, has_command=True),
    "doctor": _module("check this machine, and say what to do about it", "lockstep._src.doctor.command"),
    "inspect": _module(
        "describe a checkpoint, an export, or Parquet and ORC files", "lockstep._src.inspection.command"
    ),
    "timeline": _module("merge and summarize the timelines of a job's ranks", "lockstep._src.timeline.command"),
    "completion": Subcommand(
        "print a script for a shell, which completes this command", _completion_parser, _completion
    ),
}


def version() -> str:
    """Returns the version in one line, with TensorFlow and compiler if the op library is built."""
    try:
        return buildinfo()
    except ModuleNotFoundError:
        return f"lockstep {installed_version()}, without an op library"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the subcommand that the command line names.

    Args:
      arguments: The command line without the program's name; `sys.argv[1:]` by default.

    Returns:
      The exit code for this process.

    Raises:
      SystemExit: the help or the version was asked for (0), or the command line is wrong (2).
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in SUBCOMMANDS:  # Its words are its own: argparse would take `--version` for ours.
        return SUBCOMMANDS[words[0]].main(words[1:])
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Synchronous distributed training of recommenders on TensorFlow.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="subcommands:\n" + "\n".join(f"  {name:<12}{one.summary}" for name, one in SUBCOMMANDS.items()),
    )
    parser.add_argument("--version", action=ShowVersion, text=version, help="print the version")
    parser.add_argument("subcommand", choices=SUBCOMMANDS, metavar="subcommand", help="its --help lists its options")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="options and words of the subcommand")
    parser.parse_args(words)
    parser.error("options of a subcommand stand behind its name")
