"""Workers that check promises: functions of a module, each named after the promise that it asserts."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep.testing import WorkerError, run_module

WORKERS = 2
FOLDER = Path(__file__).resolve().parent


def hold(*promises) -> None:
    """Checks the promises one after the other in a worker, and prints a line for each."""
    for promise in promises:
        promise()
        print("kept:", promise.__name__, flush=True)


def defined_in(module_name: str) -> list:
    """Returns the module's functions with several words in their name and no arguments, in the order of the text."""
    functions = inspect.getmembers(sys.modules[module_name], inspect.isfunction)
    own = [f for n, f in functions if f.__module__ == module_name and "_" in n and not inspect.signature(f).parameters]
    return sorted((f for f in own if not f.__name__.startswith("_")), key=lambda f: f.__code__.co_firstlineno)


def of(worker: str) -> list[str]:
    """Returns the names of the promises of `tests.multiprocess.<worker>`, in the order of the text."""
    return re.findall(r"^def ([a-z]\w*_\w+)\(\):", (FOLDER / f"{worker.replace('.', '/')}.py").read_text(), re.M)


def run(worker: str, timeout_s: float = 120, arguments: Sequence[str] = ()) -> str:
    """Runs `tests.multiprocess.<worker>` on two workers. Returns the output of both, or the error with this output."""
    try:
        return "\n".join(run_module(WORKERS, f"tests.multiprocess.{worker}", *arguments, timeout_s=timeout_s))
    except WorkerError as error:
        return str(error)


def assert_kept(output: str, promise: str) -> None:
    """Asserts that each worker kept this promise."""
    assert len(re.findall(rf"^kept: {promise}$", output, re.M)) == WORKERS, output
