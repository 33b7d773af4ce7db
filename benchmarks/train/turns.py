"""Programs that the workers of one job build together and run in turns: the common part of benchmarks of steps.

A program is a function that runs a step, given the number of the batch. The workers run all programs in blocks of
steps, so that other load on the machine meets all of them. Each worker has one thread, on its share of the cores.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence


def pin(rank: int, workers: int) -> None:
    """Restricts this process to its worker's share of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // workers)
    os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share] or cores)


def measure(programs: Mapping[str, Callable[[int], object]], warm_up: int, blocks: int, steps: int) -> dict[str, float]:
    """Returns the milliseconds of a step of each program: the median over the blocks of a block's mean."""
    times = collections.defaultdict(list)
    for block in range(warm_up + blocks):
        for name, step in programs.items():
            started = time.perf_counter()
            for number in range(steps):
                step(number)
            if block >= warm_up:
                times[name].append((time.perf_counter() - started) / steps)
    return {name: statistics.median(own) * 1e3 for name, own in times.items()}


def report(figures: object) -> None:
    """Prints the figures of worker 0 for `launch`."""
    print("FIGURES", json.dumps(figures), flush=True)


def launch(
    script: str,
    flags: argparse.Namespace,
    names: Sequence[str],
    workers: int,
    more_environment: Mapping[str, str] | None = None,
) -> dict:
    """Runs the workers of a script once, with `--worker` and the named flags. Returns the figures of worker 0."""
    from lockstep.testing.workers import worker_variables

    command = [sys.executable, script, "--worker"]
    command += [f"--{name}={getattr(flags, name)}" for name in names]
    processes = []
    try:
        for variables in worker_variables(workers):
            environment = {**os.environ, **variables, **(more_environment or {}), "CUDA_VISIBLE_DEVICES": ""}
            environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        output = processes[0].communicate()[0]
        for rank, process in enumerate(processes):
            if process.wait() != 0:
                raise RuntimeError(f"worker {rank} ended with exit code {process.returncode}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return json.loads(next(line for line in output.splitlines() if line.startswith("FIGURES"))[len("FIGURES") :])
