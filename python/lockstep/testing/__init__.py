"""For tests of programs on several workers: starts them, holds them to a deadline, hands back what they said."""

from lockstep.testing.cases import run_cases
from lockstep.testing.workers import Outcome, WorkerError, call_workers, run_module, run_workers

__all__ = ["Outcome", "WorkerError", "call_workers", "run_cases", "run_module", "run_workers"]
