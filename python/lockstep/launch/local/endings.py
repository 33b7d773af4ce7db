"""Finds out which worker ended a failed job, and writes the job's last line."""

import signal
from collections.abc import Iterable, Mapping

from lockstep.launch.base.notes import INTERRUPT
from lockstep.launch.base.seconds import seconds_of
from lockstep.launch.local.worker import Worker

# The seconds that workers have after Ctrl-C, to save and to end.
INTERRUPT_VARIABLE = "LOCKSTEP_INTERRUPT_TIMEOUT"
_INTERRUPT_TIMEOUT_S = 10.0


def own_failure(ended_badly: Iterable[Worker], end_signal: signal.Signals | None) -> Worker | None:
    """Returns the first worker that failed for its own reason, after all were signalled to end; None: no such worker.

    Args:
      ended_badly: The workers that ended with another exit code than 0, in this order.
      end_signal: The signal that asked them to end; None: SIGTERM.
    """
    ends: set[int] = {end_signal or signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGKILL}
    for worker in ended_badly:
        if worker.is_secondary or worker.notes.because == INTERRUPT or -worker.final_code in ends:
            continue
        return worker
    return None


def with_checkpoint(text: str, workers: Iterable[Worker]) -> str:
    """Adds the last checkpoint that still exists to a job's last line, and how training continues from there.

    Incomplete files are not recommended; the line names the last one. A checkpoint that the same command restores comes
    before a newer file that it may not read.
    """
    workers = list(workers)
    saved = [(worker, one) for worker in workers for one in worker.notes.saved]
    if not saved:
        return text + ("; no checkpoint was saved" if any(worker.notes.because for worker in workers) else "")
    there = [(worker, one) for worker, one in saved if worker.may_exist(one.file)]
    if not there:
        return f"{text}; no checkpoint is left: the program deleted all that it saved"
    left = [one for worker, one in there if worker.may_load(one.file)]
    damaged = [one for _, one in there if one not in left]
    if damaged:
        text += f"; {damaged[-1].path} is incomplete and cannot be loaded"
    if not left:
        return f"{text}; no other checkpoint is left"
    last = next((one for one in reversed(left) if one.resumes), left[-1])
    at = f" ({last.at})" if last.at else ""
    if not last.resumes:
        return f"{text}; the last saved file is {last.path}{at}: a program that loads it continues from there"
    if not last.data:
        then = "the same command restores it and reads data from its first batch"
    else:
        then = "the same command continues from there"
    return f"{text}; the last checkpoint is {last.path}{at}: {then}"


def interrupt_timeout_of(environment: Mapping[str, str]) -> float:
    """Returns the seconds that workers have to end by themselves after Ctrl-C.

    Raises:
      LaunchError: the variable is not a valid number of seconds.
    """
    return seconds_of(environment, INTERRUPT_VARIABLE, _INTERRUPT_TIMEOUT_S)
