"""Runs of a command-line tool on files from others: it prints a description, or one line of error."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from lockstep.launch.base.printing import printable

# On a busy machine; the inputs of tests are small.
_MOST_SECONDS = 30.0


def run_tool(main: Callable[[Sequence[str]], int], arguments: Sequence[str], shown: pytest.CaptureFixture[str]) -> str:
    """Runs a tool in this process, and returns its error: one line, or "" after a success.

    Args:
      main: the tool; returns its exit code.
      arguments: its arguments.
      shown: captures what it prints.

    Raises:
      AssertionError: the tool needed long, ended with another code than 0 and 1, or printed something that a terminal
        would follow, or an error of several lines.
    """
    begin = time.monotonic()
    code = main(arguments)
    assert time.monotonic() - begin < _MOST_SECONDS
    printed = shown.readouterr()
    assert printed.out == printable(printed.out, lines=True)
    assert code in (0, 1)
    assert printed.err.count("\n") == code, printed.err
    error = printed.err.removesuffix("\n")
    assert error == printable(error)
    return error
