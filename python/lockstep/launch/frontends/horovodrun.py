"""Horovod's launcher, on top of this project's: `horovodrun`, and `horovod.run` for functions.

    horovodrun -np 2 -H localhost:2 python train.py ...

It differs from `python -m lockstep.launch` where programs of Horovod's expect it (docs/horovod.md). The number of
workers must be given. Each worker sees all GPUs of the machine, and chooses one by its local rank. Each also gets its
place in Horovod's variables. TF_CONFIG, which Horovod does not know, is neither read nor forwarded.
"""

import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.launch.base.call_folder import VARIABLE as FOLDER
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.known_lines import holds_start_up_lines
from lockstep.launch.base.output import Console
from lockstep.launch.base.places import places
from lockstep.launch.base.version import installed_version
from lockstep.launch.cli.call import Dumps, JobFactory, call_in
from lockstep.launch.cli.job_factory import CommandJobs, Environments
from lockstep.launch.cli.main import NO_COMMAND, environments_of, execute, program_of
from lockstep.launch.cli.output_options import ranks_of
from lockstep.launch.elastic.elastic_job import ElasticJob
from lockstep.launch.elastic.other_hosts import RemoteAccess
from lockstep.launch.frontends.horovod_command_line import API_VERSION, PROGRAM, command_line, request_of
from lockstep.launch.frontends.horovod_output import HorovodConsole
from lockstep.launch.frontends.horovod_request import Request
from lockstep.launch.frontends.horovod_settings import ReadYaml
from lockstep.launch.local.attempts import check_restarts
from lockstep.launch.local.process import command_starter
from lockstep.launch.remote.multi_host_job import JobHosts


def main(arguments: Sequence[str] | None = None, *, read_yaml: ReadYaml) -> int:
    """Runs a job as the command line asks. Does not return if a single process replaces this one.

    Args:
      arguments: The command line without the program's name; `sys.argv[1:]` by default.
      read_yaml: Reads the text of a configuration file; raises ValueError for one that is no YAML.

    Returns:
      The exit code for this process: 0, the first failure's exit code, or 2 for a request that cannot be met.
    """
    line = command_line()
    options, words = line.parse(sys.argv[1:] if arguments is None else arguments)
    if options.check_build:
        print(_build())
        return 0
    if not words:
        line.error(NO_COMMAND)
    try:
        request, unknown = request_of(options, read_yaml)
        environment = dict(os.environ)
        console = HorovodConsole(
            timestamps=request.timestamps, ranks=ranks_of(options), holds_start_up=holds_start_up_lines(environment)
        )
        for key in unknown:
            console.message(f"--config-file {options.config_file}: {key} has no effect in {PROGRAM}")
        words = program_of(words, options.tf1, environment)
        if request.elastic:
            make_job = _elastic_job(request, environment, console, shlex.join(words))
            return make_job(words, None, 0).run()
        return execute(words, _jobs(request, environment, console, shlex.join(words)))
    except LaunchError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code


def run_function(
    function: Callable[[], Any],
    dumps: Dumps,
    request: Request,
    executable: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    console: Console | None = None,
) -> list[Any]:
    """Calls a function on each process of a job, each a fresh interpreter, and returns the results.

    Args:
      function: A function without arguments.
      dumps: Pickles the function and its results (`call`).
      request: The job.
      executable: The processes' interpreter; by default this process's.
      environment: The variables that they inherit; by default this process's.
      console: Shows their output; by default in this process's stdout and stderr.

    Returns:
      The results in the order of the ranks; for an elastic job, the ranks at its end.

    Raises:
      LaunchError: the request cannot be met.
      RuntimeError: a process failed; the message has its rank, and the exception if there was one.
    """
    console = console or HorovodConsole(timestamps=request.timestamps)
    inherited = dict(os.environ if environment is None else environment)
    make_job = (_elastic_job if request.elastic else _jobs)(request, inherited, console, "a function")
    restarts = check_restarts(request.restarts)
    results = call_in(function, dumps, make_job, console, executable=executable, restarts=restarts)
    # The results are in the order of the ranks, for an elastic job too.
    return list(results.values())


def _elastic_job(request: Request, environment: dict[str, str], console: Console, shown: str) -> JobFactory:
    """Returns a function that makes an elastic job; shows what is started if the request asks for it."""
    request.validate()
    plan, variables, shell = request.plan(environment), request.variables(environment), request.shell(environment)
    if request.verbose:
        limits = plan.limits
        most = "any number" if limits.max_np is None else limits.max_np
        console.message(f"{limits.num_proc} processes, {limits.min_np} to {most}: {shown}")
        _say_variables(variables, console)

    def make_job(words: Sequence[str], files: Path | None, attempt: int) -> ElasticJob:
        del attempt  # An elastic job restarts by itself.
        folder = None if files is None else str(files)
        with_files = {} if folder is None else {FOLDER: folder}
        inherited = {**environment, **variables, **with_files}
        return ElasticJob(command_starter(words), plan, inherited, console, folder, RemoteAccess(words, shell))

    return make_job


def _say_variables(variables: Mapping[str, str], console: Console) -> None:
    for name, value in variables.items():
        console.message(f"{name}={value}")


def _jobs(request: Request, environment: dict[str, str], console: Console, shown: str) -> CommandJobs:
    """Returns a function that makes a job of fixed size; shows what is started if the request asks for it."""
    request.validate()
    job_hosts, variables = request.job_hosts(environment), request.variables(environment)
    environment.pop("TF_CONFIG", None)
    if request.verbose:
        console.message(f"{request.num_proc} processes on {', '.join(map(str, job_hosts.hosts))}: {shown}")
        _say_variables(variables, console)
    planned, restarts = _environments(job_hosts, console), check_restarts(request.restarts)
    return CommandJobs(
        planned, job_hosts, {**environment, **variables}, console, request.output_filename, restarts=restarts
    )


def _environments(job_hosts: JobHosts, console: Console) -> Environments:
    """Returns a function that plans processes which all run on this host, under the name that the user gave it."""

    def of(environment: Mapping[str, str]) -> list[dict[str, str]]:
        planned = environments_of(None, job_hosts, console)(environment)
        worker_places = places([(job_hosts.hosts[0].name, job_hosts.size)])
        return [{**worker, **place.horovod_variables()} for worker, place in zip(planned, worker_places, strict=True)]

    return of


def _has_device_library() -> bool:
    """Returns whether the library for GPUs lies beside the op library; NCCL is loaded when it is used."""
    built = importlib.util.find_spec("lockstep._build_info")
    return built is not None and Path(str(built.origin)).with_name("liblockstep_cuda13.so").is_file()


def _build() -> str:
    def mark(there: bool) -> str:
        return "[X]" if there else "[ ]"

    tensorflow, built = (
        mark(importlib.util.find_spec(name) is not None) for name in ("tensorflow", "lockstep._build_info")
    )
    return f"""\
Lockstep {installed_version()}, with the API of Horovod {API_VERSION}

Available Frameworks:
    {tensorflow} TensorFlow
    {built} Lockstep's operations for it

Available Controllers:
    [X] {PROGRAM} (--gloo)
    [ ] MPI

Available Tensor Operations:
    {built} shared memory, inside of a machine
    {mark(_has_device_library())} NCCL, between GPUs
    [ ] MPI
    {built} Gloo, between machines"""
