"""Horovod's launcher, called from a program."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.launch.frontends.horovod_elastic import ElasticOptions
from lockstep.launch.frontends.horovod_request import Request
from lockstep.launch.frontends.horovodrun import run_function

__all__ = ["run"]


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    restarts: int | None = None,
) -> list[Any]:
    """Calls a function on the processes of a job, on this machine or on several, and returns their results.

    The arguments are the same as in Horovod's `horovod.run`, and mean what horovodrun's options mean
    (docs/horovod.md). The processes are interpreters of their own, to which cloudpickle sends the function. It may
    therefore be a lambda or stand in the program itself, and the program may have used TensorFlow before.

    Args:
      func: The function.
      args: Its positional arguments.
      kwargs: Its arguments by name.
      num_proc: How many processes.
      min_num_proc: Makes the job elastic (docs/horovod_elastic.md), as does each of `max_num_proc` and
        `host_discovery_script`: with fewer processes it waits.
      max_num_proc: More processes are not started.
      slots: The slots of a host whose line in the script's output has no number.
      reset_limit: How often the job may begin again.
      cooldown_range: For how many seconds a host gets no new processes after a failure: at first, and at most.
      hosts: `host:slots,host:slots`; ssh reaches hosts other than this machine. By default this machine, with a
        slot for each process.
      hostfile: A file with lines `host slots=N` instead.
      host_discovery_script: A program that prints lines host:slots; it runs again and again.
      start_timeout: Seconds until all processes must have initialized Horovod; 60 by default.
      ssh_port: The port of ssh on the hosts.
      ssh_identity_file: The file with the key for ssh.
      disable_cache: Without effect: nothing is cached.
      output_filename: A folder, whose files rank.N/stdout and stderr keep the processes' output.
      verbose: Whether to print what is started.
      use_gloo: Without effect: this launcher is the only one.
      use_mpi: Refused.
      mpi_args: Without effect.
      network_interface: Names of network interfaces, with commas; see horovodrun's option.
      network_interfaces: The same as a list.
      executable: The processes' interpreter; by default this process's.
      np: Former name of `num_proc`; takes precedence over it.
      min_np: Former name of `min_num_proc`.
      max_np: Former name of `max_num_proc`.
      restarts: How often the job begins again when a process has failed; never by default. Not one of Horovod's.

    Returns:
      The results, by rank; of an elastic job, by the ranks at its end.

    Raises:
      lockstep.launch.LaunchError: the request cannot be met: see its message.
      RuntimeError: a process failed; the message has its rank, and its exception if there was one. The other processes
        were ended.
    """
    import cloudpickle  # The command line does without.

    del disable_cache, mpi_args
    request = Request(
        num_proc=num_proc if np is None else np,
        hosts=hosts,
        hostfile=hostfile,
        network_interfaces=network_interfaces or (network_interface.split(",") if network_interface else ()),
        start_timeout=start_timeout,
        output_filename=output_filename,
        verbose=bool(verbose),
        controller="mpi" if use_mpi else "gloo" if use_gloo else "",
        elastic=ElasticOptions(
            min_np=min_num_proc if min_np is None else min_np,
            max_np=max_num_proc if max_np is None else max_np,
            host_discovery_script=host_discovery_script,
            slots=slots,
            reset_limit=reset_limit,
            cooldown_range=cooldown_range,
        ),
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        restarts=restarts,
    )
    return run_function(functools.partial(func, *args, **(kwargs or {})), cloudpickle.dumps, request, executable)
