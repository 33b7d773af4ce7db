"""Helpers for tests of programs on several workers: they start workers, enforce a deadline and return the output."""

from lockstep.testing.cases import operations_reported_by_case, reported_by_case, run_cases
from lockstep.testing.workers import Outcome, WorkerError, call_workers, run_module, run_workers

__all__ = [
    "Outcome",
    "WorkerError",
    "call_workers",
    "operations_reported_by_case",
    "reported_by_case",
    "run_cases",
    "run_module",
    "run_workers",
]
