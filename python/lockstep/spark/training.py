"""A job of the launcher in Spark's slots: one Spark task per process holds a slot while the job runs.

All processes of a job run on the driver's machine, and the tasks must run there, too. Each task connects to a socket in
a folder of the driver, and keeps its slot until the driver closes the connection. The launcher starts the processes
itself, so output, failures and signals are the same as in a job without Spark.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from lockstep.launch.base.seconds import whole_seconds
from lockstep.launch.cli.call import Dumps
from lockstep.launch.frontends import horovodrun
from lockstep.launch.frontends.horovod_request import Request
from lockstep.spark.session import active_context, error_text

_START_TIMEOUT_S = 600
_START_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"
_LOOK_EVERY_S = 0.5
# The time in seconds within which Spark should notice that its tasks have ended.
_END_TIMEOUT_S = 30.0


def start_timeout_from_environment_s() -> int:
    """Returns how long a job may wait for its slots and processes: HOROVOD_SPARK_START_TIMEOUT, or 600 seconds.

    Raises:
      LaunchError: the variable is not a positive whole number.
    """
    return whole_seconds(_START_TIMEOUT, os.environ.get(_START_TIMEOUT) or str(_START_TIMEOUT_S))


def run_function(
    function: Callable[[], Any], dumps: Dumps, request: Request, start_timeout_s: float, **how: Any
) -> list[Any]:
    """Runs a function in each process of a job in Spark's slots, and returns the results.

    Args:
      function: a function without arguments.
      dumps: pickles the function and its results.
      request: the job. Without a number of processes, it gets one for each slot (spark.default.parallelism).
      start_timeout_s: how long to wait for free slots, in seconds.
      **how: arguments of `lockstep.launch.frontends.horovodrun.run_function`: `executable`, `environment`, `console`.

    Returns:
      The function's results by rank.

    Raises:
      LaunchError: the request cannot be met.
      RuntimeError: there is no SparkContext; Spark has not provided the slots in time, or not on this machine, or has
        ended the job; or a process failed (the message has its rank and its exception).
    """
    context = active_context()
    if request.num_proc is None:
        request.num_proc = context.defaultParallelism
    request.validate()
    with _Slots(context, request.num_proc) as slots:
        slots.wait(start_timeout_s)
        with slots.end_this_job_when_lost():
            return horovodrun.run_function(function, dumps, request, **how)


class _Slots:
    """Spark's slots, which tasks hold inside the block."""

    def __init__(self, context: Any, count: int):
        self._count = count
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-spark-")
        self._path = os.path.join(self._folder.name, "slots")
        self._listener = socket.socket(socket.AF_UNIX)
        self._held: list[socket.socket] = []
        self._failure: str | None = None
        self._is_needed = False
        # Guards `_is_needed`, so that no signal is sent after the job has ended.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run_tasks, args=(context,), name="slots of Spark", daemon=True)

    def __enter__(self) -> _Slots:
        self._listener.bind(self._path)
        self._listener.listen(self._count)
        self._listener.settimeout(_LOOK_EVERY_S)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (self._listener, *self._held):
            connection.close()
        # A task that starts later finds no socket, and ends.
        self._folder.cleanup()
        self._thread.join(_END_TIMEOUT_S)

    def wait(self, timeout_s: float) -> None:
        """Waits until tasks hold all slots. Raises RuntimeError after `timeout_s`, or if Spark has failed."""
        deadline = time.monotonic() + timeout_s
        while len(self._held) < self._count:
            with contextlib.suppress(TimeoutError):
                self._held.append(self._listener.accept()[0])
            if not self._thread.is_alive():
                raise RuntimeError(f"Spark has ended the job: {self._failure}")
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"Spark had {len(self._held)} of {self._count} slots free within {timeout_s:g} s: request fewer "
                    "processes, or a longer start_timeout"
                )

    @contextlib.contextmanager
    def end_this_job_when_lost(self) -> Iterator[None]:
        """Ends the job inside the block with SIGTERM if Spark takes a slot away."""
        with self._lock:
            self._is_needed = True
        try:
            yield
        except RuntimeError:
            if self._failure is not None:
                raise RuntimeError(f"Spark has ended the job: {self._failure}") from None
            raise
        finally:
            with self._lock:
                self._is_needed = False

    def _run_tasks(self, context: Any) -> None:
        task = functools.partial(_hold, self._path)
        try:
            context.parallelize(range(self._count), self._count).barrier().mapPartitions(task).collect()
        except Exception as error:
            self._failure = error_text(error)
        with self._lock:
            if self._is_needed:
                os.kill(os.getpid(), signal.SIGTERM)


def _hold(path: str, partition: Iterator[int]) -> Iterator[int]:
    """Holds the slot of a Spark task until the driver closes the connection."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError:
            raise RuntimeError(
                f"a task on {socket.gethostname()} does not see the driver's folder: all processes of a job run on the "
                "driver's machine, so Spark must run the tasks there"
            ) from None
        connection.recv(1)
    return partition
