"""Cases of a test that run one after another on the workers of one job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def run_cases(cases: Iterable[Callable[[], None]], meet: Callable[[str], Any]) -> None:
    """Calls each case; on a worker, inside of what `call_workers` calls.

    Args:
      cases: functions, which fail by an exception.
      meet: called behind each with its name, so that no worker is ahead by a case.

    Raises:
      AssertionError: a case failed; names it, and has what it raised as its cause.
    """
    for case in cases:
        try:
            case()
        except Exception as error:
            raise AssertionError(f"case {case.__name__}") from error
        meet(case.__name__)
