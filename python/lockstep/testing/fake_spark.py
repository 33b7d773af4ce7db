"""A Spark of threads: each task of a stage is one, as far as our programs use Spark."""

import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor


class Context:
    """A SparkContext with this many slots; a stage is run all at once by its `collect`."""

    def __init__(self, slots):
        self.defaultParallelism = slots
        self.is_stopped = False
        self.lost = None

    def parallelize(self, numbers, slices):
        """A stage with a task for each number."""
        assert len(numbers) == slices
        return _Stage(self, len(numbers))


class _Stage:
    def __init__(self, context, tasks):
        self._context, self._tasks = context, tasks
        self._is_barrier = False
        self._function = None

    def barrier(self):
        self._is_barrier = True
        return self

    def mapPartitions(self, function):  # noqa: N802
        self._function = function
        return self

    def collect(self):
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
            # A signal's exception does not wait for the tasks either.
            pool.shutdown(wait=False)

    def _run(self, rank):
        _TASK.rank = rank
        return list(self._function(iter([rank])))


_TASK = threading.local()


def install(slots):
    """Has `import pyspark` find this Spark; gives its context."""
    context = Context(slots)

    def stop():
        context.is_stopped = True

    session = types.SimpleNamespace(sparkContext=context, stop=stop)
    builder = types.SimpleNamespace(getOrCreate=lambda: session)
    task = types.SimpleNamespace(partitionId=lambda: _TASK.rank)
    pyspark, sql = types.ModuleType("pyspark"), types.ModuleType("pyspark.sql")
    pyspark.BarrierTaskContext = types.SimpleNamespace(get=lambda: task)
    pyspark.SparkContext = types.SimpleNamespace(_active_spark_context=context)
    sql.SparkSession = types.SimpleNamespace(builder=builder)
    sys.modules.update({"pyspark": pyspark, "pyspark.sql": sql})
    return context


def installer(monkeypatch):
    """Installs such a Spark with a number of slots, until a test's end."""

    def start(slots):
        for name in ("pyspark", "pyspark.sql"):
            monkeypatch.setitem(sys.modules, name, None)
        return install(slots)

    return start
