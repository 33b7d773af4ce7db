"""A rank of the doctor's measurement: `python -m lockstep._src.doctor.rank` under the launcher.

Rank 0 prints a line of JSON on stdout with the times; the first rank of each host prints the findings of its host.
"""

import dataclasses
import json
import socket
import statistics
import time
from typing import Any

SMALL_BYTES, LARGE_BYTES = 4, 64 << 20
_SMALL_CALLS, _LARGE_CALLS = 100, 5


def measure() -> dict[str, Any]:
    """Measures an allreduce between all ranks of the job; every rank calls it.

    Returns:
      "ranks", "hosts"; "latency_s": the median time of 4 bytes; "seconds" the median time of 64 MiB, which makes
      "bytes_per_s"; "connect_s": the time until all ranks had met.
    """
    import tensorflow as tf

    from lockstep._src.collectives.ordered import allreduce
    from lockstep._src.engine import library
    from lockstep._src.engine.context import context

    begin = time.perf_counter()
    context.ensure_initialized()
    connect_s = time.perf_counter() - begin
    medians = []
    for size, calls in ((SMALL_BYTES, _SMALL_CALLS), (LARGE_BYTES, _LARGE_CALLS)):
        values = tf.ones([size // 4], tf.float32)
        times = []
        for _ in range(calls + 2):  # The first calls touch memory for the first time.
            begin = time.perf_counter()
            total = allreduce(values)
            times.append(time.perf_counter() - begin)
        if float(total[-1]) != context.world_size:
            raise RuntimeError(
                f"allreduce of {size} bytes: got a sum of {float(total[-1])}, wanted {context.world_size}"
            )
        medians.append(statistics.median(times[2:]))
    return {
        "ranks": context.world_size,
        "hosts": library.num_hosts(),
        "connect_s": connect_s,
        "latency_s": medians[0],
        "seconds": medians[1],
        "bytes_per_s": LARGE_BYTES / medians[1],
    }


def main() -> None:
    """Prints what this rank has to say."""
    from lockstep._src.doctor.checks import host_checks
    from lockstep._src.engine.context import context

    if context.local_rank == 0:
        findings = [dataclasses.asdict(finding) for finding in host_checks(context.local_world_size)]
        print(json.dumps({"host": socket.gethostname(), "rank": context.rank, "findings": findings}), flush=True)
    times = measure()
    if context.rank == 0:
        print(json.dumps({"times": times}), flush=True)


if __name__ == "__main__":
    main()
