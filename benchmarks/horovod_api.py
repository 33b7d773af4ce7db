"""Horovod's API from call to call, on 2 and 4 workers of this host, compared with Horovod itself if it is installed.

Usage: python benchmarks/horovod_api.py [--seconds S] [--ranks 2 4] [--peer PYTHON]

Method: each operation is a `tf.function`. It is called in turns with an empty one of the same form, that is with the
same arguments and results. Each worker is pinned to its share of the cores. An operation's time is the median of its
calls less the median of the empty ones, on the slowest rank. The figure "quiet" is the same for the consecutive tenth
of the calls in which the empty ones were quickest: other programs of the machine disturb it least. Rates are Horovod's:
bytes of one rank's tensor by that time.

The row "launch" is the time from the start of `horovodrun` to the end of the first allreduce. The row "idle" is a
rank's processor time, in percent of a core, while all ranks do nothing. With more ranks than cores, ranks take turns on
a core.

--peer names the Python of an environment with Horovod: the same program runs there, in turns with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The goal of each row for 2 ranks: at most in "ms" and "%", at least in "GB/s".
GOALS = {
    "allreduce 4 B": (0.06, "ms"),
    "26 alltoalls of 64 KiB": (0.8, "ms"),
    "alltoall 64 KiB, other splits": (0.15, "ms"),
    "100 allreduces of 1 KiB, grouped": (None, "ms"),  # the time of the empty call
    "allreduce 1 MiB": (None, "ms"),
    "allreduce 64 MiB": (3, "GB/s"),
    "broadcast 64 MiB": (None, "GB/s"),
    "reducescatter 64 MiB": (None, "GB/s"),
    "idle": (1, "%"),
    "launch": (None, "s"),
}
LARGE = 64 << 20


def build(row: str, size: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Returns the operation of a row, and an empty one of its form."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    def pair(operation: Callable[..., Any], arguments: list[list[Any]], signature: Any = None) -> Any:
        """Returns calls of the operation and of a function that returns its arguments; they use `arguments` in turn."""

        def calls(function: Any) -> Callable[[], Any]:
            turn = iter(range(1 << 62))
            return lambda: function(*arguments[next(turn) % len(arguments)])

        def empty(*inputs: Any) -> Any:
            return tf.nest.map_structure(tf.identity, inputs)

        full, idle = (tf.function(f, input_signature=signature, autograph=False) for f in (operation, empty))
        return calls(full), calls(idle)

    floats = {"4 B": 1, "1 MiB": 1 << 18, "64 MiB": LARGE // 4}.get(" ".join(row.split()[1:3]), 0)
    if row.startswith("allreduce"):
        return pair(lambda x: hvd.allreduce(x, op=hvd.Sum, name="allreduce"), [[tf.ones([floats])]])
    if row.startswith("broadcast"):
        return pair(lambda x: hvd.broadcast(x, 0, name="broadcast"), [[tf.ones([floats])]])
    if row.startswith("reducescatter"):
        return pair(lambda x: hvd.reducescatter(x, op=hvd.Sum, name="reducescatter"), [[tf.ones([floats])]])
    if row.startswith("100"):
        return pair(lambda *xs: hvd.grouped_allreduce(list(xs), op=hvd.Sum), [[tf.ones([256]) for _ in range(100)]])
    if row.startswith("26"):
        tables = [tf.ones([1024, 16]) for _ in range(26)]
        return pair(lambda *xs: [hvd.alltoall(x, name=f"table{i}") for i, x in enumerate(xs)], [tables])
    # About 64 KiB, of which each peer gets another part in each call.
    arguments = []
    for step in range(8):
        splits = [1024 // size + 8 * ((step * (peer + 1)) % 8) - 28 for peer in range(size)]
        arguments.append([tf.ones([sum(splits), 16]), tf.constant(splits, tf.int32)])
    signature = [tf.TensorSpec([None, 16], tf.float32), tf.TensorSpec([None], tf.int32)]
    return pair(lambda x, s: hvd.alltoall(x, s, name="alltoall"), arguments, signature)


def times_of(calls: tuple[Callable[[], Any], ...], seconds: float) -> list[list[float]]:
    """Returns median seconds of each call, over all rounds and over each tenth; the first call is a collective."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    start = time.perf_counter()
    for _ in range(5):
        for call in calls:
            call()
    # All ranks need the same number; otherwise they would wait for each other.
    own = tf.constant(5 * seconds / (time.perf_counter() - start))
    rounds = max(10, min(5000, int(hvd.broadcast(own, 0, name="rounds"))))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, of_call in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            of_call.append(time.perf_counter() - start)
    tenths = [slice(rounds * i // 10, rounds * (i + 1) // 10) for i in range(10)]
    return [[statistics.median(of_call[part]) for of_call in times] for part in (slice(None), *tenths)]


def work(seconds: float, results: Path) -> None:
    """Runs the benchmark on one worker; rank 0 writes the results."""
    # Before the import of TensorFlow, whose threads keep their initial affinity.
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // int(os.environ["HOROVOD_SIZE"]))
    first = int(os.environ["HOROVOD_RANK"]) * share % len(cores)
    os.sched_setaffinity(0, cores[first : first + share])
    import tensorflow as tf

    import horovod.tensorflow as hvd

    hvd.init()
    hvd.allreduce(tf.ones([1]), name="first")
    measured = {"launch": [time.time() - float(os.environ["LAUNCHED_AT"]), 0.0]}
    for row in GOALS:
        if row in ("idle", "launch"):
            continue
        medians = times_of(build(row, hvd.size()), seconds)
        slowest = hvd.allreduce(tf.constant(medians, tf.float64), op=hvd.Max, name=f"slowest {row}")
        whole, *tenths = slowest.numpy().tolist()
        measured[row] = [*whole, *min(tenths, key=lambda medians: medians[1])]
    before = resource.getrusage(resource.RUSAGE_SELF)
    idle_s = max(2.0, seconds)
    time.sleep(idle_s)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / idle_s * 100
    most = hvd.allreduce(tf.constant(used, tf.float64), op=hvd.Max, name="idle")
    measured["idle"] = [float(most), 0.0]
    if hvd.rank() == 0:
        results.write_text(json.dumps(measured))


def measure(python: str, ranks: int, seconds: float) -> dict[str, list[float]]:
    """Returns the measurements of a job of `ranks` workers in the environment of `python`."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        worker = [python, __file__, "--results", str(results), "--seconds", str(seconds)]
        launcher = [python, "-m", "horovod.runner.launch", "-np", str(ranks), "-H", f"localhost:{ranks}"]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "LAUNCHED_AT": str(time.time())}
        job = subprocess.run(
            [*launcher, *worker],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300 + 60 * seconds,
            check=False,
        )
        if job.returncode != 0:
            sys.exit(f"{python}, {ranks} ranks: exit code {job.returncode}\n{job.stdout}\n{job.stderr}")
        return json.loads(results.read_text())


def in_unit(row: str, operation: float, empty: float) -> float:
    """Returns the time above an empty call, in the row's unit."""
    own = max(operation - empty, 1e-9)
    return {"ms": own * 1e3, "GB/s": LARGE / own / 1e9}.get(GOALS[row][1], operation)


def shown(row: str, times: list[float]) -> str:
    """Returns a row's result as text: of all calls, and of the quiet ones."""
    unit = GOALS[row][1]
    if len(times) < 4:
        return f"{times[0]:.2f} {unit}"
    digits = 3 if unit == "ms" else 2
    text = f"{in_unit(row, *times[:2]):.{digits}f} {unit}, quiet {in_unit(row, *times[2:]):.{digits}f}"
    return f"{text} (empty {times[3] * 1e3:.3f})" if unit == "ms" else text


def verdict(row: str, times: list[float]) -> str:
    """Returns whether the quiet calls meet the goal, as text; empty without a goal."""
    goal, unit = GOALS[row]
    if row.startswith("100"):
        goal = times[3] * 1e3
    if goal is None:
        return ""
    number = in_unit(row, *times[-2:])
    met = number >= goal if unit == "GB/s" else number <= goal
    return f"{'>=' if unit == 'GB/s' else '<='} {goal:.3g} {unit}  {'met' if met else 'MISSED'}"


def main() -> None:
    """Starts the jobs, or runs as a worker of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row, roughly")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="numbers of workers")
    parser.add_argument("--peer", help="the Python of an environment with Horovod")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.results is not None:
        work(options.seconds, options.results)
        return
    for ranks in options.ranks:
        own = measure(sys.executable, ranks, options.seconds)
        peer = measure(options.peer, ranks, options.seconds) if options.peer else None
        print(f"{f'{ranks} ranks, p50 above an empty call':<36}{'':<40}{'Horovod' if peer else ''}")
        for row in GOALS:
            beside = shown(row, peer[row]) if peer else ""
            goal = verdict(row, own[row]) if ranks == 2 else ""
            print(f"{row:<36}{shown(row, own[row]):<40}{beside:<40}{goal}".rstrip())


if __name__ == "__main__":
    main()
