"""Finds the Python program in a worker's command, and rewrites the command to run it as a TensorFlow 1 script."""

import os
import re
import sys
from collections.abc import Mapping, Sequence

from lockstep.launch.base.errors import LaunchError

TF1_VARIABLE = "LOCKSTEP_TF1"
_TF1_MODULE = "lockstep.launch.tf1"
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?$")
_LONG_WITH_ARGUMENT = "--check-hash-based-pycs"


def wants_tf1(option: bool, environment: Mapping[str, str]) -> bool:
    """Returns whether `--tf1` or LOCKSTEP_TF1=1 was given.

    Raises:
      LaunchError: the variable is neither 0 nor 1.
    """
    value = environment.get(TF1_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise LaunchError(f"{TF1_VARIABLE}={value!r}: wanted 1 (run as a TensorFlow 1 script) or 0")
    return option or value == "1"


def as_tf1(command: Sequence[str]) -> list[str]:
    """Returns the command with its Python program run by `lockstep.launch.tf1`.

    Programs before the interpreter (`numactl ... python main.py`) and the interpreter's own options are kept. The
    program may be given as `python main.py`, `python -m module`, `python -c code`, or as an executable `main.py`.

    Raises:
      LaunchError: no Python program is found in it.
    """
    for position, word in enumerate(command):
        if _PYTHON.match(os.path.basename(word)):
            options, program = _split_arguments(command[position + 1 :])
            if not program or (program[0] in ("-m", "-c") and len(program) == 1):
                raise LaunchError(f"--tf1: no program in {' '.join(command)!r}; wanted `python main.py ...`")
            return [*command[: position + 1], *options, "-m", _TF1_MODULE, *program]
        if _is_python_script(word):
            return [*command[:position], sys.executable, "-m", _TF1_MODULE, *command[position:]]
    raise LaunchError(f"--tf1: no Python program in the command {' '.join(command)!r}; wanted `python main.py ...`")


def _split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits an interpreter's arguments into its own options and the program.

    The program is `main.py ...`, `-m module ...` or `-c code ...`. It is empty if there is none, or if it is read from
    stdin.
    """
    options: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in ("-", "--"):
            return options, []
        if word.startswith("--"):
            options.append(word)
            if word == _LONG_WITH_ARGUMENT:
                options += rest[:1]
                rest = rest[1:]
            continue
        # One-letter options may be written together. The first one with an argument takes the rest of the word.
        parts = re.match(r"(-[^WXcm]*)([WXcm]?)(.*)", word, re.DOTALL)
        assert parts is not None  # Every word with a hyphen in front matches.
        flags, letter, attached = parts.groups()
        if letter in ("c", "m"):
            options += [flags] if flags != "-" else []
            return options, ["-" + letter, *([attached] if attached else []), *rest]
        options.append(word)
        if letter and not attached:
            options += rest[:1]
            rest = rest[1:]
    return options, rest


def _is_python_script(word: str) -> bool:
    if not (word.endswith(".py") and os.access(word, os.X_OK)):
        return False
    with open(word, "rb") as script:
        first = script.readline(256)
    return first.startswith(b"#!") and b"python" in first
