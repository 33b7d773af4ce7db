"""Makes the job that the user asked for, on this host or on several, for each attempt."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lockstep.launch.base.call_folder import VARIABLE as FOLDER
from lockstep.launch.base.output import Console
from lockstep.launch.cli.call import JobFactory
from lockstep.launch.local import attempts
from lockstep.launch.local.output_folder import open_copies
from lockstep.launch.local.process import command_starter
from lockstep.launch.local.supervised_job import SupervisedJob
from lockstep.launch.remote.multi_host_job import JobHosts, MultiHostJob

# Returns the environments of workers that are started here, from the launcher's environment.
Environments = Callable[[Mapping[str, str]], Sequence[Mapping[str, str]]]


def make_job_factory(
    environments: Environments,
    job_hosts: JobHosts | None,
    environment: Mapping[str, str],
    console: Console,
    *,
    folder: str | None = None,
    restarts: int = 0,
) -> JobFactory:
    """Returns a function that makes the job of a command. Each job has a new secret and a new rendezvous.

    Args:
      environments: Plans the workers if all are started here.
      job_hosts: The hosts; None: this host.
      environment: The launcher's environment variables.
      console: Shows the output.
      folder: A folder that also gets the output (`open_copies`). Later attempts append to the first one's files.
      restarts: How many attempts may follow the first.

    Raises:
      LaunchError: raised by the function if the job cannot be started.
    """

    def make_job(words: Sequence[str], files: Path | None, attempt: int) -> SupervisedJob:
        variables = attempts.attempt_environment(environment, restarts, attempt)
        folder_of_files = None if files is None else str(files)
        if job_hosts is not None and not job_hosts.is_here:
            ranks: Sequence[int] = range(job_hosts.size)
            copies = None if folder is None else open_copies(folder, ranks, job_hosts.size, console, attempt > 0)
            return MultiHostJob(words, job_hosts, variables, console, copies, folder_of_files)
        planned = environments(variables if folder_of_files is None else {**variables, FOLDER: folder_of_files})
        copies = None
        if folder is not None:
            ranks = [int(worker["LOCKSTEP_RANK"]) for worker in planned]
            copies = open_copies(folder, ranks, int(planned[0]["LOCKSTEP_WORLD_SIZE"]), console, attempt > 0)
        return SupervisedJob(command_starter(words), planned, console, copies, folder_of_files)

    return make_job
