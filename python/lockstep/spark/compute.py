"""The compute job of a data service on Spark: the registry in the driver, a worker in each task of a barrier stage.

Spark starts all tasks of such a stage together, or none. Spark would restart a failed stage. Therefore the task of a
worker that fails ends without an error, and returns the reason to the driver as its result.
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
from lockstep.spark.session import error_text

_DESCRIPTION = """\
A TensorFlow data service on a Spark cluster, started by spark-submit. It runs a worker in each of the
spark.default.parallelism slots. It serves training jobs until one of them ends it, or until it is killed.
"""


def run_command(program: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command as Spark's driver, and ends the process.

    Args:
      program: the program's name in messages.
      arguments: the command line without the program's name; `sys.argv[1:]` by default.
    """
    command.run(program, arguments, main=main, description=_DESCRIPTION)


def main(dispatchers: int, dispatcher_side: str, configfile: str | os.PathLike[str], timeout: int) -> None:
    """Runs a compute job on all slots of Spark until training ends it; then stops Spark's session.

    Args:
      dispatchers: number of dispatchers; must divide the number of slots.
      dispatcher_side: the job that runs the dispatchers: `compute` or `training`.
      configfile: path of the config file that the driver writes. The training job must see it; Spark's executors need
        not.
      timeout: how long to wait for dispatchers and workers, in seconds.

    Raises:
      ValueError: an argument is wrong; no worker has been started.
      DataServiceError: a worker, or Spark's job, has failed; the file belongs to another compute job that still runs;
        or pyspark is not installed.
    """
    request = compute.Request(dispatchers, dispatcher_side, Path(configfile), timeout)
    with compute.failures_are_left_in(request.configfile):
        # Errors that do not depend on the number of slots are raised before Spark is started.
        request.validate(size=dispatchers)
        session = _session()
    try:
        slots = session.sparkContext.defaultParallelism
        compute.serve(request, Place(0, slots), functools.partial(_run_workers, session.sparkContext, slots))
    finally:
        # Spark may already have ended.
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
        raise DataServiceError(f"Spark has ended the job: {error_text(error)}") from None
    # One failure is the cause. The others begin with FAILED: these workers learned from the registry that the job has
    # failed.
    failures.sort(key=lambda text: text.startswith(FAILED))
    if failures:
        kind = ComputeJobError if failures[0].startswith(FAILED) else DataServiceError
        raise kind(failures[0])


def _work(config: Mapping[str, Any], partition: Iterator[int]) -> Iterator[str]:
    """Runs a worker in a Spark task; yields the reason if it fails."""
    from pyspark import BarrierTaskContext

    del partition
    rank = BarrierTaskContext.get().partitionId()
    # Transformations run on CPUs; the GPUs belong to the training job.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")
    compute_config = TfDataServiceConfig.from_dict(config)
    try:
        compute.run_worker(compute_config, rank)
    except DataServiceError as error:
        yield str(error)
    except (TimeoutException, ValueError, OSError, tf.errors.OpError) as error:
        reason = f"worker {rank}: {error}"
        # The other workers would wait for this one until the timeout. The driver gets the reason in any case.
        with contextlib.suppress(DataServiceError):
            compute_config.compute_client().fail(reason)
        yield reason
