"""Collectives from TensorFlow op to TensorFlow op, on two workers that this program starts.

Usage: python benchmarks/collectives.py [--seconds S]

Method: two graphs of the same form run in turns through `Session.make_callable`, which fetches nothing: one has the
collective, the other ("empty") an identity in its place. A collective's time is the median of its calls less the median
of the empty ones, on rank 0. Each worker is pinned to its share of the cores. Rates count the bytes of one rank's
tensor; for alltoall and allgather, the bytes for its peers.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable

SIZE = 2


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table. `target` is at most in µs; with `counted_bytes`, it is at least in GB/s."""

    name: str
    collective: str
    nbytes: int
    target: float | None
    counted_bytes: int | None = None


CASES = (
    Case("allreduce 4 B", "allreduce", 4, 60),
    Case("allreduce 64 KiB", "allreduce", 64 << 10, None, 64 << 10),
    Case("allreduce 1 MiB", "allreduce", 1 << 20, None, 1 << 20),
    Case("allreduce 64 MiB", "allreduce", 64 << 20, 3, 64 << 20),
    Case("allreduce 64 MiB in 64 tensors", "bucket", 64 << 20, 3, 64 << 20),
    Case("alltoallv 1 MiB per peer", "alltoall", SIZE << 20, 3, (SIZE - 1) << 20),
    Case("allgatherv 1 MiB each", "allgather", 1 << 20, None, (SIZE - 1) << 20),
    Case("barrier", "barrier", 0, None),
)


def measure(case: Case, seconds: float) -> tuple[float, float]:
    """Returns median seconds of a call with the collective, and of an empty one."""
    import tensorflow.compat.v1 as tf

    from lockstep._src.collectives import ordered

    with tf.Graph().as_default(), tf.Session() as session:
        count = 64 if case.collective == "bucket" else 1
        variables = [
            tf.Variable(tf.ones([case.nbytes // 4 // count]), use_resource=True, trainable=False) for _ in range(count)
        ]
        session.run(tf.global_variables_initializer())
        inputs = [tf.identity(v.read_value()) for v in variables]
        build = {
            "allreduce": lambda: ordered.allreduce(inputs),
            "bucket": lambda: ordered.allreduce(inputs),
            "alltoall": lambda: ordered.alltoall(inputs[0])[0],
            "allgather": lambda: ordered.allgather(inputs[0]),
            "barrier": ordered.barrier,
        }[case.collective]
        full = session.make_callable(tf.group(build()))
        empty = session.make_callable(tf.group(*[tf.identity(x) for x in inputs]))
        # The number of calls must be the same on all ranks; otherwise they would wait for each other.
        start = time.perf_counter()
        for _ in range(5):
            full()
        calls = tf.constant([max(10, min(5000, int(seconds * 5 / (time.perf_counter() - start))))], tf.float32)
        calls = int(session.run(ordered.broadcast(calls))[0])
        return median(full, calls), median(empty, calls)


def median(call: Callable[[], object], calls: int) -> float:
    """Returns the median time of `call`, in seconds."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def work(seconds: float) -> None:
    """Runs the benchmark on one worker; rank 0 prints the table."""
    rank = int(os.environ["LOCKSTEP_RANK"])
    is_chief = rank == 0
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // SIZE)
    os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share] or cores)
    if is_chief:
        print(f"{'p50, ' + str(SIZE) + ' ranks':<32}{'call':>12}{'empty':>12}{'collective':>14}{'target':>14}")
    for case in CASES:
        full, empty = measure(case, seconds)
        if not is_chief:
            continue
        own = max(full - empty, 1e-9)
        if case.counted_bytes is None:
            got, target = f"{own * 1e6:.1f} µs", "" if case.target is None else f"<= {case.target:g} µs"
            met = case.target is None or own * 1e6 <= case.target
        else:
            rate = case.counted_bytes / own / 1e9
            got, target = f"{rate:.2f} GB/s", "" if case.target is None else f">= {case.target:g} GB/s"
            met = case.target is None or rate >= case.target
        verdict = "" if case.target is None else "  met" if met else "  MISSED"
        print(f"{case.name:<32}{full * 1e6:>9.1f} µs{empty * 1e6:>9.1f} µs{got:>14}{target:>14}{verdict}")


def main() -> None:
    """Starts the workers, or runs as one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row, roughly")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.seconds)
        return
    from lockstep.testing import run_workers

    command = [sys.executable, __file__, "--worker", "--seconds", str(options.seconds)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    outputs = run_workers(SIZE, command, timeout_s=120 + 20 * options.seconds, environment=environment)
    print("\n".join(line for line in outputs[0].splitlines() if line[:1] not in "WIE" or "p50" in line))


if __name__ == "__main__":
    main()
