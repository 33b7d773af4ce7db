"""Restarts a job that failed, as often as the user allows (`--restarts`)."""

import time
from collections.abc import Callable, Mapping

from lockstep.launch.base.errors import HostLost, LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.local.supervised_job import SupervisedJob

# Tells workers how often the job has been restarted.
VARIABLE = "LOCKSTEP_RESTART"
# Makes checkpoints hold the position in the data. A value that the user has set is kept.
_SAVE_POSITION = "LOCKSTEP_SAVE_DATA_POSITION"
# The pause before the first restart, which doubles each time, and the longest one. By then the ports and devices of the
# former workers are free.
_PAUSE_S, _MOST_PAUSE_S = 1.0, 10.0


def run_attempts(
    make_job: Callable[[int], SupervisedJob], restarts: int, console: Console
) -> tuple[SupervisedJob, int]:
    """Runs a job, and restarts it while it fails.

    A request that cannot be met is not tried again, nor is a job that a signal ended.

    Args:
      make_job: Makes the job of an attempt; attempts are counted from 0.
      restarts: How many attempts may follow the first.
      console: Shows why and when the job is restarted.

    Returns:
      The last attempt's job, which has ended, and its exit code.

    Raises:
      LaunchError: the job cannot be started.
    """
    for attempt in range(restarts + 1):
        job = make_job(attempt)
        try:
            code = job.run()
            failed = job.failed if job.may_restart else None
            why = "" if failed is None else f"{failed.name} {failed.describe_end()}"
        except HostLost as error:
            # A host that was never reached is a wrong request; one that was reached before may come back.
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


def remind_of_scope(job: SupervisedJob, code: int, console: Console) -> None:
    """Reports a job that ended well although its workers have exchanged nothing.

    Args:
      job: The job, which has ended.
      code: Its exit code.
      console: Shows the line.
    """
    if code == 0 and job.exchanged_nothing:
        console.message(
            f"the {len(job.ranks())} workers exchanged nothing: each ran the program independently. To train one model "
            "on all of them, build and train it inside lockstep.scope() (docs/start.md)"
        )


def check_restarts(restarts: int | None) -> int:
    """Returns the number of restarts, 0 for None.

    Raises:
      LaunchError: the value is not a number of restarts.
    """
    if restarts is None:
        return 0
    if type(restarts) is not int or restarts < 0:
        raise LaunchError(f"--restarts {restarts}: wanted 0 or more")
    return restarts


def attempt_environment(environment: Mapping[str, str], restarts: int, attempt: int) -> dict[str, str]:
    """Returns the environment of an attempt.

    If restarts are allowed, each attempt continues at the position in the data that the last checkpoint holds.
    """
    if not restarts:
        return dict(environment)
    return {_SAVE_POSITION: "1", **environment, VARIABLE: str(attempt)}
