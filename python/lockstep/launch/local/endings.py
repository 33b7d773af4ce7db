"""How a job ended that did not end well: who is to blame, and what its last line says."""

import signal
from collections.abc import Iterable, Mapping

from lockstep.launch.base.notes import INTERRUPT
from lockstep.launch.base.seconds import seconds_of
from lockstep.launch.local.worker import Worker

# Seconds that workers have after Ctrl-C, to save and end.
INTERRUPT_VARIABLE = "LOCKSTEP_INTERRUPT_TIMEOUT"
_INTERRUPT_TIMEOUT_S = 10.0


def own_failure(ended_badly: Iterable[Worker], told_by: signal.Signals | None) -> Worker | None:
    """Of workers that were told to end, the first that failed otherwise than by that; None: there is none.

    Args:
      ended_badly: Those that ended with another code than 0, in their order.
      told_by: The signal; None: it was SIGTERM.
    """
    ends = {told_by, signal.SIGINT, signal.SIGTERM, signal.SIGKILL}
    for worker in ended_badly:
        if worker.is_secondary or worker.notes.because == INTERRUPT or -worker.code in ends:
            continue
        return worker
    return None


def with_checkpoint(text: str, workers: Iterable[Worker]) -> str:
    """Adds to a job's last line which checkpoint is the last, and how training goes on from there."""
    workers = list(workers)
    saved = [worker.notes.saved for worker in workers if worker.notes.saved is not None]
    if not saved:
        return text + ("; no checkpoint was saved" if any(worker.notes.because for worker in workers) else "")
    path, step, resumes = saved[0]
    if not resumes:
        return f"{text}; the last file that was saved is {path}: load it to go on from there"
    at = "" if step is None else f" (step {step})"
    return f"{text}; the last checkpoint is {path}{at}: the same command goes on from there"


def interrupt_timeout_of(environment: Mapping[str, str]) -> float:
    """Seconds that workers have to end after Ctrl-C before they are ended.

    Raises:
      LaunchError: the environment says something else than a number of seconds.
    """
    return seconds_of(environment, INTERRUPT_VARIABLE, _INTERRUPT_TIMEOUT_S)
