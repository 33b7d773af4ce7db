"""The launcher's command line."""

import os
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from lockstep.launch.base import interfaces
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.known_lines import holds_start_up_lines
from lockstep.launch.base.output import Console
from lockstep.launch.base.version import installed_version
from lockstep.launch.cli import tf1_command
from lockstep.launch.cli.arguments import CommandLine, ShowVersion
from lockstep.launch.cli.host_options import add_hosts, add_restarts, hosts_asked_for, interfaces_of
from lockstep.launch.cli.job_factory import CommandJobs, Environments
from lockstep.launch.cli.output_options import (
    add_log_folder,
    add_shown_ranks,
    add_timeline,
    folder_of,
    ranks_of,
    set_timeline,
)
from lockstep.launch.local import attempts
from lockstep.launch.local.attempts import check_restarts, run_attempts
from lockstep.launch.local.process import not_executable
from lockstep.launch.placement import plan
from lockstep.launch.placement.hosts import assign_slots
from lockstep.launch.placement.tasks import Tasks
from lockstep.launch.remote.multi_host_job import JobHosts

_DESCRIPTION = """\
Starts the workers of a job, on this machine or on each of several hosts: one for each GPU in CUDA_VISIBLE_DEVICES or
NVIDIA_VISIBLE_DEVICES, or N on the CPU. By default there is one worker. When a worker fails, all workers are ended, and
the launcher returns the failed worker's exit code.
"""
NO_COMMAND = "no command; wanted one like: python main.py"

# Returns the command to run, and may set defaults in the environment.
Prepare = Callable[[list[str], MutableMapping[str, str]], list[str]]


def command_line(spelling: str) -> CommandLine:
    """Returns the parser of the launcher's options.

    Args:
      spelling: The words with which users call the launcher, for the help.
    """
    line = CommandLine(spelling, _DESCRIPTION)
    line.add("-n", "--workers", type=int, metavar="N", help="number of workers of each machine")
    line.add("-np", "--num-proc", type=int, metavar="N", help="number of workers of the job, on all machines together")
    add_restarts(line)
    add_tf1(line)
    line.add("--version", action=ShowVersion, text=lambda: f"lockstep {installed_version()}", help="print the version")
    output = line.group("output")
    add_shown_ranks(line, output)
    add_log_folder(line, output)
    add_timeline(line, output)
    add_hosts(line, default="this machine; in an allocation of Slurm's, its hosts")
    return line


def main(
    arguments: Sequence[str] | None = None,
    program: str = "lockstep.launch",
    prepare: Prepare | None = None,
    spelling: str | None = None,
) -> int:
    """Runs a job as the command line asks. Does not return if a single worker replaces this process.

    Args:
      arguments: The command line without the program's name; `sys.argv[1:]` by default.
      program: The module's name, for messages.
      prepare: Prepares command and environment for another project's launcher.
      spelling: The words with which users call it, for the help; `python -m <program>` by default.

    Returns:
      The exit code for this process: 0, the first failure's exit code, or 2 for a request that cannot be met.
    """
    line = command_line(spelling or f"python -m {program}")
    options, words = line.parse(sys.argv[1:] if arguments is None else arguments)
    if not words:
        line.error(NO_COMMAND)
    environment = dict(os.environ)
    try:
        if prepare is not None:
            words = prepare(words, environment)
        words = program_of(words, options.tf1, environment)
        return execute(words, _jobs(options, environment, _console(options, environment)), reminds=True)
    except LaunchError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code


def _console(options: Any, environment: Mapping[str, str]) -> Console:
    return Console(ranks=ranks_of(options), holds_start_up=holds_start_up_lines(environment))


def _jobs(options: Any, environment: dict[str, str], console: Console) -> CommandJobs:
    """Returns the jobs that the options ask for; sets variables of the environment."""
    set_timeline(options, environment)
    if choices := interfaces_of(options):  # Connections between hosts use the first one.
        environment[interfaces.VARIABLE] = choices[0]
    _check_numbers(options.workers, options.num_proc)
    asked = hosts_asked_for(
        options, options.workers, lambda: len(plan.granted_devices(environment, console).ids), environment
    )
    job_hosts, workers = None, options.workers
    if asked is not None:
        hosts, shell = asked
        job_hosts = JobHosts(hosts if options.num_proc is None else assign_slots(options.num_proc, hosts), shell)
        environment.pop("TF_CONFIG", None)  # The list of hosts replaces it.
    elif options.num_proc is not None:
        plan.check_alone(options.num_proc, environment)
        workers = options.num_proc
    planned = environments_of(workers, job_hosts, console)
    restarts = check_restarts(options.restarts)
    return CommandJobs(planned, job_hosts, environment, console, folder_of(options), restarts)


def _check_numbers(workers: int | None, num_proc: int | None) -> None:
    """Checks that the number of workers is valid, and given only once."""
    if workers is not None and num_proc is not None:
        raise LaunchError(f"got -n {workers} (of each machine) and -np {num_proc} (of the job), wanted one of them")
    for name, number in (("-n", workers), ("-np", num_proc)):
        if number is not None and number < 1:
            raise LaunchError(f"{name} {number}: wanted 1 or more workers")


def environments_of(workers: int | None, job_hosts: JobHosts | None, console: Console) -> Environments:
    """Returns a function that plans workers which are all started here, from the hosts or else from the environment."""
    if job_hosts is None:
        return lambda environment: plan.environments(workers, environment, console)
    return lambda environment: plan.environments(
        job_hosts.size,
        environment,
        console,
        assigns_gpus=job_hosts.assigns_gpus,
        tasks=Tasks(),
        tf_config=not job_hosts.is_horovod,
    )


def add_tf1(line: CommandLine, to: Any = None) -> None:
    """Adds the option for programs of TensorFlow 1, to a group of the line."""
    line.add("--tf1", to=to, action="store_true", help="run the program as a TensorFlow 1 script (also LOCKSTEP_TF1=1)")


def program_of(words: list[str], tf1: bool, environment: Mapping[str, str]) -> list[str]:
    """Returns the command, rewritten for TensorFlow 1 if the option or the environment asks for that.

    Raises:
      LaunchError: no Python program is found in it, or the variable is neither 0 nor 1.
    """
    return tf1_command.as_tf1(words) if tf1_command.wants_tf1(tf1, environment) else words


def execute(words: list[str], jobs: CommandJobs, reminds: bool = False) -> int:
    """Runs a command on workers; returns the launcher's exit code.

    A single worker on this host replaces this process, and this function does not return. This needs that no restarts
    are allowed, and that its output is shown as it is: not kept in files, not hidden, and without timestamps. A task of
    TF_CONFIG without a rank always does so.

    Args:
      words: The command.
      jobs: Makes the job.
      reminds: Whether a line reports a job whose workers exchanged nothing.

    Raises:
      LaunchError: the command cannot be executed, or the folder cannot be made.
    """
    planned = []
    if jobs.is_here:
        planned.append(jobs.environments(attempts.attempt_environment(jobs.environment, jobs.restarts, 0)))
        if len(planned[0]) == 1 and (not jobs.supervises_one or "LOCKSTEP_RANK" not in planned[0][0]):
            _become(words, planned[0][0])

    def environments_for(variables: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
        return planned.pop() if planned else jobs.environments(variables)

    make_job = replace(jobs, environments=environments_for)
    job, code = run_attempts(lambda attempt: make_job(words, None, attempt), jobs.restarts, jobs.console)
    if reminds:
        attempts.remind_of_scope(job, code, jobs.console)
    return code


def _become(words: list[str], environment: Mapping[str, str]) -> None:
    """Replaces this process by the only worker, which so has the terminal, the signals and the exit code for itself."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        raise not_executable(words[0], error) from None
