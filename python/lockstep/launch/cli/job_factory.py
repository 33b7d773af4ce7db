"""Makes the job that the user asked for, on this host or on several, for each attempt."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.launch.base.call_folder import VARIABLE as FOLDER
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.local import attempts
from lockstep.launch.local.output_folder import Copies, OutputFolder, open_copies
from lockstep.launch.local.process import command_starter
from lockstep.launch.local.supervised_job import SupervisedJob
from lockstep.launch.remote.multi_host_job import JobHosts, MultiHostJob

# Returns the environments of workers that are started here, from the launcher's environment.
Environments = Callable[[Mapping[str, str]], Sequence[Mapping[str, str]]]


@dataclass(frozen=True)
class CommandJobs:
    """Makes the job of a command for each attempt (`JobFactory`). Each job has a new secret and a new rendezvous.

    Attributes:
      environments: Plans the workers if all are started here.
      job_hosts: The hosts; None: this host.
      environment: The launcher's environment variables.
      console: Shows the output.
      folder: A folder that also gets the output (`open_copies`). Later attempts append to the first one's files.
      restarts: How many attempts may follow the first.
    """

    environments: Environments
    job_hosts: JobHosts | None
    environment: Mapping[str, str]
    console: Console
    folder: str | OutputFolder | None = None
    restarts: int = 0

    @property
    def is_here(self) -> bool:
        """Whether all workers are started on this host."""
        return self.job_hosts is None or self.job_hosts.is_here

    @property
    def supervises_one(self) -> bool:
        """Whether even a single worker is supervised, rather than run in the launcher's place."""
        shows_all = self.console.ranks is None and not self.console.timestamps
        return bool(self.restarts) or self.folder is not None or not shows_all

    def __call__(self, words: Sequence[str], files: Path | None, attempt: int) -> SupervisedJob:
        """Returns the job of an attempt.

        Raises:
          LaunchError: the job cannot be started.
        """
        variables = attempts.attempt_environment(self.environment, self.restarts, attempt)
        folder_of_files = None if files is None else str(files)
        if self.job_hosts is not None and not self.is_here:
            size = self.job_hosts.size
            self._check_ranks(size)
            copies = self._copies(range(size), size, attempt)
            return MultiHostJob(words, self.job_hosts, variables, self.console, copies, folder_of_files)
        planned = self.environments(variables if folder_of_files is None else {**variables, FOLDER: folder_of_files})
        ranks = [] if self.folder is None else [int(worker["LOCKSTEP_RANK"]) for worker in planned]
        size = int(planned[0].get("LOCKSTEP_WORLD_SIZE", 1))
        self._check_ranks(size)
        copies = self._copies(ranks, size, attempt)
        return SupervisedJob(command_starter(words), planned, self.console, copies, folder_of_files)

    def _check_ranks(self, size: int) -> None:
        for rank in self.console.ranks or ():
            if not 0 <= rank < size:
                raise LaunchError(f"--output-rank {rank}: wanted a rank of the job, 0 to {size - 1}")

    def _copies(self, ranks: Iterable[int], size: int, attempt: int) -> Copies | None:
        return None if self.folder is None else open_copies(self.folder, ranks, size, self.console, attempt > 0)
