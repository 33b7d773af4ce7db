"""Finds the Python program in a worker's command, and has it run as a TensorFlow 1 script where that is asked for."""

import os
import re
import sys
from collections.abc import Mapping, Sequence

from lockstep.launch.errors import LaunchError

TF1_VARIABLE = "LOCKSTEP_TF1"
_TF1_MODULE = "lockstep.launch.tf1"
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?$")
# Options of the interpreter that take the next argument where none is attached. -c and -m end the options.
_WITH_ARGUMENT = "WX"
_LONG_WITH_ARGUMENT = "--check-hash-based-pycs"


def wants_tf1(option: bool, environment: Mapping[str, str]) -> bool:
    """True if `--tf1` was given or LOCKSTEP_TF1 says so.

    Raises:
      LaunchError: the variable is neither 0 nor 1.
    """
    value = environment.get(TF1_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise LaunchError(f"{TF1_VARIABLE}={value!r}: wanted 1 (run as a TensorFlow 1 script) or 0")
    return option or value == "1"


def as_tf1(command: Sequence[str]) -> list[str]:
    """The command with its Python program run by `lockstep.launch.tf1`.

    Programs in front of the interpreter (`numactl ... python main.py`) and the interpreter's own options stay as they
    are; `python main.py`, `python -m module`, `python -c code` and an executable `main.py` are understood.

    Raises:
      LaunchError: no Python program is found in it.
    """
    for position, word in enumerate(command):
        if _PYTHON.match(os.path.basename(word)):
            start = position + 1 + _count_options(command[position + 1 :])
            return [*command[:start], "-m", _TF1_MODULE, *_program(command[start:], command)]
        if _is_python_script(word):
            return [*command[:position], sys.executable, "-m", _TF1_MODULE, *command[position:]]
    raise LaunchError(f"--tf1: no Python program in the command {' '.join(command)!r}; wanted `python main.py ...`")


def _count_options(arguments: Sequence[str]) -> int:
    """How many of an interpreter's arguments are options that neither name the program nor come after it."""
    count = 0
    while count < len(arguments):
        word = arguments[count]
        if word in ("-", "--") or not word.startswith("-"):
            return count
        if word.startswith("--"):
            count += 2 if word == _LONG_WITH_ARGUMENT else 1
            continue
        letters = re.match(r"-[^WXcm]*", word)[0]
        rest = word[len(letters) :]
        if rest[:1] in ("c", "m"):
            return count
        count += 2 if rest and rest in _WITH_ARGUMENT else 1
    return count


def _program(arguments: Sequence[str], command: Sequence[str]) -> list[str]:
    """The program's own part of the command: `main.py ...`, `-m module ...` or `-c code ...`."""
    if not arguments or arguments[0] in ("-", "--"):
        raise LaunchError(f"--tf1: no program after the interpreter in {' '.join(command)!r}; wanted `python main.py ...`")
    flags = re.match(r"-([^WXcm]*)([cm])(.*)", arguments[0], re.DOTALL)
    if flags is None:
        return list(arguments)
    # `-um module` and `-mmodule` are written out; flags before the letter are dropped only if they are none.
    if flags[1]:
        raise LaunchError(f"--tf1: write {arguments[0]!r} as -{flags[1]} -{flags[2]}")
    rest = [flags[3], *arguments[1:]] if flags[3] else list(arguments[1:])
    if not rest:
        raise LaunchError(f"--tf1: nothing follows -{flags[2]} in {' '.join(command)!r}")
    return ["-" + flags[2], *rest]


def _is_python_script(word: str) -> bool:
    if not (word.endswith(".py") and os.access(word, os.X_OK)):
        return False
    with open(word, "rb") as script:
        first = script.readline(256)
    return first.startswith(b"#!") and b"python" in first
