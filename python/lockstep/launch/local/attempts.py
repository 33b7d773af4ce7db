"""Starts a job again that failed, as often as the user allows (`--restarts`)."""

import time
from collections.abc import Callable, Mapping

from lockstep.launch.base.errors import HostLost, LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.local.supervised_job import SupervisedJob

# How often the job has begun anew, for workers.
VARIABLE = "LOCKSTEP_RESTART"
# Has checkpoints hold the position in the data; what the user says counts.
_SAVE_POSITION = "LOCKSTEP_SAVE_DATA_POSITION"
# Before the first, and at most; twice as long each time. Ports and devices of the former workers are free by then.
_PAUSE_S, _MOST_PAUSE_S = 1.0, 10.0


def run_attempts(
    make_job: Callable[[int], SupervisedJob], restarts: int, console: Console
) -> tuple[SupervisedJob, int]:
    """Runs a job, and again while it fails.

    Not after a request that cannot be met, nor where a signal told the launcher to end.

    Args:
      make_job: Makes it: for the how manieth attempt, from 0.
      restarts: How many attempts may follow the first.
      console: Is told.

    Returns:
      The last attempt's job, which has ended, and its exit code.

    Raises:
      LaunchError: the job cannot be started.
    """
    for attempt in range(restarts + 1):
        job = make_job(attempt)
        try:
            code = job.run()
            why = f"{job.failed.name} {job.failed.describe_end()}" if job.may_restart else ""
        except HostLost as error:
            # A host that was never there is a wrong request. Later it may come back.
            if attempt in (0, restarts):
                raise
            why = str(error)
        if not why or attempt == restarts:
            break
        pause_s = min(_PAUSE_S * 2**attempt, _MOST_PAUSE_S)
        console.message(f"{why}: restart {attempt + 1} of {restarts} in {pause_s:g} s")
        try:
            time.sleep(pause_s)
        except KeyboardInterrupt:
            break
    return job, code


def check_restarts(restarts: int | None) -> int:
    """How many; LaunchError: it is no number of restarts."""
    if restarts is None:
        return 0
    if type(restarts) is not int or restarts < 0:
        raise LaunchError(f"--restarts {restarts}: wanted 0 or more")
    return restarts


def attempt_environment(environment: Mapping[str, str], restarts: int, attempt: int) -> dict[str, str]:
    """The environment of an attempt. Where there may be several, each goes on in the data where the last one's was."""
    if not restarts:
        return dict(environment)
    return {_SAVE_POSITION: "1", **environment, VARIABLE: str(attempt)}
