"""An imitation of Spark whose tasks are threads. It has only the parts that this project uses."""

import sys
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Context:
    """A SparkContext with a number of slots; `collect` runs all tasks of a stage at the same time."""

    def __init__(self, slots: int) -> None:
        self.defaultParallelism = slots
        self.is_stopped = False
        self.lost: threading.Event | None = None

    def parallelize(self, numbers: Sequence[int], slices: int) -> "_Stage":
        """Returns a stage with a task for each number."""
        assert len(numbers) == slices
        return _Stage(self, len(numbers))


class _Stage:
    def __init__(self, context: Context, tasks: int) -> None:
        self._context, self._tasks = context, tasks
        self._is_barrier = False
        self._function: Any = None

    def barrier(self) -> "_Stage":
        self._is_barrier = True
        return self

    def mapPartitions(self, function: Callable[[Iterable[int]], Iterable[Any]]) -> "_Stage":  # noqa: N802
        self._function = function
        return self

    def collect(self) -> list[Any]:
        assert self._is_barrier
        if self._tasks > self._context.defaultParallelism:
            raise RuntimeError("the stage requires more slots")
        if self._context.lost is not None:
            self._context.lost.wait(30)
            raise RuntimeError("the stage was cancelled\nat Scheduler.scala:1")
        pool = ThreadPoolExecutor(self._tasks)
        try:
            return [found for part in pool.map(self._run, range(self._tasks)) for found in part]
        finally:
            # An exception from a signal must not wait for the tasks.
            pool.shutdown(wait=False)

    def _run(self, rank: int) -> list[Any]:
        _TASK.rank = rank
        return list(self._function(iter([rank])))


_TASK = threading.local()


def install(slots: int) -> Context:
    """Makes `import pyspark` find this imitation, and returns its context."""
    context = Context(slots)

    def stop() -> None:
        context.is_stopped = True

    session = types.SimpleNamespace(sparkContext=context, stop=stop)
    builder = types.SimpleNamespace(getOrCreate=lambda: session)
    task = types.SimpleNamespace(partitionId=lambda: _TASK.rank)
    pyspark, sql = types.ModuleType("pyspark"), types.ModuleType("pyspark.sql")
    vars(pyspark).update(
        BarrierTaskContext=types.SimpleNamespace(get=lambda: task),
        SparkContext=types.SimpleNamespace(_active_spark_context=context),
    )
    vars(sql).update(SparkSession=types.SimpleNamespace(builder=builder))
    sys.modules.update({"pyspark": pyspark, "pyspark.sql": sql})
    return context


def installer(monkeypatch: Any) -> Callable[[int], Context]:
    """Returns a function that installs this imitation with a number of slots, until the test ends."""

    def start(slots: int) -> Context:
        for name in ("pyspark", "pyspark.sql"):
            monkeypatch.setitem(sys.modules, name, None)
        return install(slots)

    return start
