"""Makes the job that a launcher was asked for: here or on several hosts, once or for each attempt."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lockstep.launch.base.call_folder import VARIABLE as FOLDER
from lockstep.launch.base.output import Console
from lockstep.launch.cli.call import JobOf
from lockstep.launch.local import attempts
from lockstep.launch.local.output_folder import open_copies
from lockstep.launch.local.process import starts_command
from lockstep.launch.local.supervised_job import Job
from lockstep.launch.remote.multi_host_job import HostsJob, Where

# The environments of the workers that are started here, for that of the launcher.
Environments = Callable[[Mapping[str, str]], Sequence[Mapping[str, str]]]


def makes_jobs(
    environments: Environments,
    where: Where | None,
    environment: Mapping[str, str],
    console: Console,
    *,
    folder: str | None = None,
    restarts: int = 0,
) -> JobOf:
    """What makes the job of a command; its secret and its rendezvous are new each time.

    Args:
      environments: Of a job whose workers are all started here.
      where: On which hosts; None: here.
      environment: The launcher's.
      console: Where output goes.
      folder: Where it is kept as well (`open_copies`); that of later attempts follows that of the first.
      restarts: How many attempts there may be beside the first.

    Raises:
      LaunchError: when a job is made: it cannot be started.
    """

    def job_of(words: Sequence[str], files: Path | None, attempt: int) -> Job:
        told = attempts.told(environment, restarts, attempt)
        folder_of_files = None if files is None else str(files)
        if where is not None and not where.is_here:
            ranks = range(where.size)
            copies = None if folder is None else open_copies(folder, ranks, where.size, console, attempt > 0)
            return HostsJob(words, where, told, console, copies, folder_of_files)
        planned = environments(told if folder_of_files is None else {**told, FOLDER: folder_of_files})
        copies = None
        if folder is not None:
            ranks = [int(worker["LOCKSTEP_RANK"]) for worker in planned]
            copies = open_copies(folder, ranks, int(planned[0]["LOCKSTEP_WORLD_SIZE"]), console, attempt > 0)
        return Job(starts_command(words), planned, console, copies, folder_of_files)

    return job_of
