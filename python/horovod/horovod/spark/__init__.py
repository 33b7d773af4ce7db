"""Horovod on Spark: `run` for training, `horovod.spark.tensorflow.compute_worker` for a data service."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TextIO

from lockstep.launch.base.output import Console
from lockstep.launch.frontends.horovod_request import Request
from lockstep.spark.training import run_function, start_timeout_from_environment_s


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: int | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Collection[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Calls a function on processes in slots of Spark's, which train together; returns their results by rank.

    `horovod.run` starts the processes, on the driver's machine; as many tasks of a barrier stage hold the slots
    meanwhile. Tasks on another machine are refused. The program needs a SparkContext.

    Args:
      fn: The function; it is sent with cloudpickle.
      args: Its positional arguments.
      kwargs: Its arguments by name.
      num_proc: How many processes; one for each slot (spark.default.parallelism) by default.
      start_timeout: Seconds in which Spark has to have the slots free, and then all processes to have initialized
        Horovod; by default HOROVOD_SPARK_START_TIMEOUT, or 600.
      use_mpi: Refused.
      use_gloo: Without effect.
      extra_mpi_args: Without effect.
      env: The processes' environment variables, beside the ones with their places; the driver's by default.
      stdout: A file of the operating system for the processes' output; the driver's by default.
      stderr: The same for errors.
      verbose: 2 prints what is started.
      nics: Names of network interfaces; see horovodrun's option.
      prefix_output_with_timestamp: Whether each line begins with date and time.
      executable: The processes' interpreter; by default this process's.

    Returns:
      The results, by rank.

    Raises:
      lockstep.launch.LaunchError: the request cannot be met: see its message.
      RuntimeError: there is no SparkContext; Spark has not given the slots in time, or not on this machine, or has
        ended the job; or a process failed: the message has its rank, and the exception where there was one.
    """
    import cloudpickle  # The data service does without.

    del use_gloo, extra_mpi_args
    timeout = start_timeout or start_timeout_from_environment_s()
    request = Request(
        num_proc=num_proc,
        network_interfaces=sorted(nics or ()),
        start_timeout=timeout,
        verbose=verbose > 1,
        controller="mpi" if use_mpi else "",
    )
    return run_function(
        functools.partial(fn, *args, **(kwargs or {})),
        cloudpickle.dumps,
        request,
        timeout,
        executable=executable,
        environment=env,
        console=Console(
            1 if stdout is None else stdout.fileno(),
            2 if stderr is None else stderr.fileno(),
            timestamps=prefix_output_with_timestamp,
        ),
    )
