"""Cases that run one after another on the workers of one job, and that pytest reports one by one.

    CASES = [sums, gathers]

    def on_worker():
        hvd.init()
        run_cases(CASES, lambda name: hvd.barrier(name=name))
        hvd.shutdown()

    test_collectives = reported_by_case(on_worker, CASES, 2)

A job is started once, because a start takes longer than most cases. After a case that fails on one worker, the workers
no longer make the same calls. So the cases behind it do not run, and fail with the name of that case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.testing.workers import Outcome, WorkerError, call_workers, describe

_PASSED = "passed on this worker: "


def run_cases(cases: Sequence[Callable[[], None]], barrier: Callable[[str], Any]) -> None:
    """Calls each case. A worker calls this inside the function that `call_workers` runs.

    Args:
      cases: functions that raise an exception if they fail.
      barrier: called with each case's name after the case, so that no worker starts the next case early.

    Raises:
      AssertionError: a case failed; the message names it, and the cause is the case's exception.
    """
    for case in cases:
        try:
            case()
        except Exception as error:
            raise AssertionError(f"case {case.__name__}") from error
        barrier(case.__name__)
        print(f"{_PASSED}{case.__name__}", flush=True)


def reported_by_case(
    on_worker: Callable[[], None], cases: Sequence[Callable[[], None]], size: int, *, timeout_s: float = 60
) -> Callable[..., None]:
    """Returns a test with a parameter for each case, which runs all cases in one job.

    Args:
      on_worker: what each worker calls; it passes `cases` to `run_cases`.
      cases: functions of a module that workers can import.
      size: the number of workers.
      timeout_s: the seconds that the job may take on a quiet machine; see `call_workers`.
    """
    import pytest

    names = [case.__name__ for case in cases]

    @functools.cache
    def outcomes() -> list[Outcome]:
        return call_workers(on_worker, size, timeout_s=timeout_s, check=False)

    @pytest.mark.workers
    @pytest.mark.parametrize("case", names)
    def test(case: str) -> None:
        check_case(case, names, outcomes(), timeout_s)

    return test


def operations_reported_by_case(
    cases: Sequence[Callable[[], None]], size: int, *, timeout_s: float = 60
) -> Callable[..., None]:
    """Returns the test of `reported_by_case` for cases that run operations of the engine, which each worker joins."""
    return reported_by_case(functools.partial(_run_on_engine, cases), cases, size, timeout_s=timeout_s)


def _run_on_engine(cases: Sequence[Callable[[], None]]) -> None:
    from lockstep._src.engine.context import context
    from lockstep._src.engine.library import ops

    context.ensure_initialized()
    run_cases(cases, lambda name: ops.lockstep_barrier(name=name))


def check_case(case: str, names: Sequence[str], outcomes: Sequence[Outcome], timeout_s: float) -> None:
    """Raises WorkerError unless a case passed on all workers, and they also ended well if it is the last case.

    Args:
      case: the case's name.
      names: the names of all cases, in order.
      outcomes: how the workers of the job ended.
      timeout_s: the deadline of the job, for the message.
    """
    passed = [name for name in names if all(f"{_PASSED}{name}\n" in outcome.output for outcome in outcomes)]
    if case in passed and (case != names[-1] or all(outcome.succeeded for outcome in outcomes)):
        return
    first = next((name for name in names if name not in passed), case)
    if case != first:
        raise WorkerError(f"did not run, because case {first} failed")
    raise WorkerError("\n".join(describe(outcome, timeout_s) for outcome in outcomes))
