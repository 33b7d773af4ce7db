"""Test cases that run one after another on the workers of one job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def run_cases(cases: Iterable[Callable[[], None]], meet: Callable[[str], Any]) -> None:
    """Calls each case on this worker. The function that `call_workers` runs calls it.

    Args:
      cases: functions. A case fails by raising an exception.
      meet: a barrier of all workers, called with the name of each case after it. No worker can then be a case ahead.

    Raises:
      AssertionError: a case failed. The message names the case; the cause is the exception that it raised.
    """
    for case in cases:
        try:
            case()
        except Exception as error:
            raise AssertionError(f"case {case.__name__}") from error
        meet(case.__name__)
