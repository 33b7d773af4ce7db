"""Cases of a test that run one after the other on the workers of one job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def run_cases(cases: Iterable[Callable[[], None]], meet: Callable[[str], Any]) -> None:
    """Calls each case. A worker calls this inside the function that `call_workers` runs.

    Args:
      cases: functions that raise an exception if they fail.
      meet: a barrier; it is called with each case's name after the case, so that no worker starts the next case early.

    Raises:
      AssertionError: a case failed; the message names it, and the cause is the case's exception.
    """
    for case in cases:
        try:
            case()
        except Exception as error:
            raise AssertionError(f"case {case.__name__}") from error
        meet(case.__name__)
