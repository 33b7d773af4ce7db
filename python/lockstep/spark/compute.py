"""The compute job of a data service on Spark: the registry in the driver, a worker in each task of a barrier stage.

Spark starts all tasks of such a stage together, or none. A worker that fails ends as a task that has done its work, and
gives its reason to the driver as the result: Spark would start a failed stage again.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from lockstep._src.compat.horovod.data_service import command, compute
from lockstep._src.compat.horovod.data_service.config import TfDataServiceConfig
from lockstep._src.compat.horovod.data_service.errors import FAILED, ComputeJobError, DataServiceError, TimeoutException
from lockstep._src.compat.horovod.data_service.place import Place
from lockstep.spark.session import told_by

_DESCRIPTION = """\
A TensorFlow data service on a Spark cluster, started by spark-submit: a worker in each slot, of which there are
spark.default.parallelism. It serves training jobs until one of them ends it, or it is killed.
"""


def run_command(program: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Does what the command line says, as Spark's driver, and ends the process.

    Args:
      program: its name in messages.
      arguments: the command line without the program's name; `sys.argv[1:]` by default.
    """
    command.run(program, arguments, main=main, description=_DESCRIPTION)


def main(dispatchers: int, dispatcher_side: str, configfile: str | os.PathLike[str], timeout: int) -> None:
    """Runs a compute job on all slots of Spark until training tells it to end, and stops Spark's session.

    Args:
      dispatchers: number of dispatchers; divides the number of slots.
      dispatcher_side: the job that runs them: `compute` or `training`.
      configfile: where the driver writes the config; the training job has to see it, Spark's executors have not.
      timeout: how long dispatchers and workers are waited for, in seconds.

    Raises:
      ValueError: an argument is wrong; no worker has been started.
      DataServiceError: a worker, or Spark's job, has failed; the file is of a compute job that runs; no pyspark.
    """
    request = compute.Request(dispatchers, dispatcher_side, Path(configfile), timeout)
    with compute.failures_are_left_in(request.configfile):
        # All that is wrong whatever the number of slots is said before Spark is started.
        request.validate(size=dispatchers)
        session = _session()
    try:
        slots = session.sparkContext.defaultParallelism
        compute.serve(request, Place(0, slots), functools.partial(_run_workers, session.sparkContext, slots))
    finally:
        # Spark may have ended before.
        with contextlib.suppress(Exception):
            session.stop()


def _session() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise DataServiceError(f"no pyspark here: {error}; pip install pyspark") from None
    return SparkSession.builder.getOrCreate()


def _run_workers(context: Any, slots: int, compute_config: TfDataServiceConfig) -> None:
    task = functools.partial(_work, compute_config.to_dict())
    try:
        failures = context.parallelize(range(slots), slots).barrier().mapPartitions(task).collect()
    except Exception as error:
        raise DataServiceError(f"Spark has ended the job: {told_by(error)}") from None
    # One is the cause; to the others the registry has told it.
    failures.sort(key=lambda text: text.startswith(FAILED))
    if failures:
        kind = ComputeJobError if failures[0].startswith(FAILED) else DataServiceError
        raise kind(failures[0])


def _work(config: Mapping[str, Any], partition: Iterator[int]) -> Iterator[str]:
    """A task: runs a worker; yields why it failed, if it did."""
    from pyspark import BarrierTaskContext

    del partition
    rank = BarrierTaskContext.get().partitionId()
    # Transformations run on processors; the GPUs are the training job's.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")
    try:
        compute.run_worker(TfDataServiceConfig.from_dict(config), rank)
    except DataServiceError as error:
        yield str(error)
    except (TimeoutException, ValueError, OSError, tf.errors.OpError) as error:
        yield f"worker {rank}: {error}"
