"""The time and the memory that a sharded table and its slot take to start, on two workers that this program starts.

Usage: python benchmarks/memory/start.py [--rows 10000000] [--dim 32] [--initializer uniform] [--launches 1].

Workload: `hb.scope()` in a graph of TensorFlow 1 has one table of `rows` rows, with a seed, and Adagrad's slot for it.
Each worker has the launcher's settings of malloc, and half of the cores. It fills as much memory as its share, weights
and slot, in new pages: once with numpy, which asks for huge pages, and once in pages of 4 KiB. Then it initializes the
variables and takes one step.

| column | is |
| --- | --- |
| share | the bytes of a worker's rows and of their slot |
| initialize | the seconds of `session.run(tf1.global_variables_initializer())` |
| fill | the seconds that numpy takes to fill the share |
| ratio | initialize / fill |
| small pages | the seconds of a fill in pages of 4 KiB, as malloc gives them to TensorFlow |
| peak - share | the highest resident memory during the initialization, above that before it, less the share |
| step | the same up to the end of a first step |

Target: the peak is at most the share and 256 MiB.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import time

WORKERS, IDS = 2, 4096
TARGET_BYTES = 256 << 20
INITIALIZERS = ("uniform", "normal", "truncated_normal", "zeros")


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rows", type=int, default=10_000_000, help="rows of the table (%(default)s)")
    flags.add_argument("--dim", type=int, default=32, help="width of the table (%(default)s)")
    flags.add_argument("--initializer", choices=INITIALIZERS, default="uniform", help="(%(default)s)")
    flags.add_argument("--launches", type=int, default=1, help="runs of the whole program (%(default)s)")
    flags.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return flags.parse_args()


# The worker.


def resident(name: str) -> int:
    """Returns a line of /proc/self/status in bytes: VmRSS, or the highest value so far, VmHWM."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name + ":"))


def seconds(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def fill(size: int) -> None:
    """Fills `size` bytes of new memory."""
    import numpy as np

    np.empty(size // 4, np.float32).fill(0.1)


def fill_small_pages(size: int) -> None:
    import numpy as np

    with mmap.mmap(-1, size) as memory:
        array = np.frombuffer(memory, np.float32)
        array.fill(0.1)
        del array


def worker(flags: argparse.Namespace) -> None:
    """Fills memory, then initializes a table; prints the figures of this worker."""
    import tensorflow as tf

    import hybridbackend.tensorflow as hb

    tf1 = tf.compat.v1
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    initializer = {
        "uniform": tf1.random_uniform_initializer(-0.1, 0.1, seed=1),
        "normal": tf1.random_normal_initializer(stddev=0.1, seed=1),
        "truncated_normal": tf1.truncated_normal_initializer(stddev=0.1, seed=1),
        "zeros": tf1.zeros_initializer(),
    }[flags.initializer]
    with tf.Graph().as_default(), hb.scope():
        with hb.embedding_scope():
            table = tf1.get_variable("table", [flags.rows, flags.dim], initializer=initializer)
        found = tf.nn.embedding_lookup(table, tf.random.uniform([IDS], 0, flags.rows, tf.int64))
        train_op = tf1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(found)))
        init_op = tf1.global_variables_initializer()
        threads = max(1, len(os.sched_getaffinity(0)) // WORKERS)
        config = tf1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1)
        with tf1.Session(config=config) as session:
            session.run(tf.constant(0))
            share = 2 * table.shape.num_elements() * table.dtype.size
            figures = {"share": share, "fill": seconds(lambda: fill(share))}
            figures["small pages"] = seconds(lambda: fill_small_pages(share))
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # VmHWM starts again at VmRSS
            before = resident("VmRSS")
            figures["initialize"] = seconds(lambda: session.run(init_op))
            figures["peak"] = resident("VmHWM") - before
            session.run(train_op)
            figures["step"] = resident("VmHWM") - before
    print("FIGURES", json.dumps(figures), flush=True)


# The parent.


def launch(flags: argparse.Namespace) -> list[dict]:
    """Returns the figures of each worker."""
    from lockstep.launch.placement.worker_environment import KEEP_MEMORY
    from lockstep.testing import run_workers

    command = [sys.executable, __file__, "--worker"]
    command += [f"--{name}={getattr(flags, name)}" for name in ("rows", "dim", "initializer")]
    environment = {**KEEP_MEMORY, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    outputs = run_workers(WORKERS, command, timeout_s=120, environment={**environment, **os.environ})
    lines = [next(line for line in o.splitlines() if line.startswith("FIGURES")) for o in outputs]
    return [json.loads(line[len("FIGURES") :]) for line in lines]


def main() -> None:
    flags = flags_from()
    if flags.worker:
        worker(flags)
        return
    print(f"{flags.rows} rows x {flags.dim}, {flags.initializer}, Adagrad, {WORKERS} workers", flush=True)
    print("rank  share MiB  initialize s  fill s  ratio  small pages s  peak - share MiB  step - share MiB")
    over = 0
    for _ in range(flags.launches):
        for rank, f in enumerate(launch(flags)):
            above, step = f["peak"] - f["share"], f["step"] - f["share"]
            over = max(over, above)
            print(
                f"{rank:4}{f['share'] >> 20:11}{f['initialize']:14.2f}{f['fill']:8.2f}"
                f"{f['initialize'] / f['fill']:7.2f}{f['small pages']:15.2f}{above >> 20:18}{step >> 20:18}",
                flush=True,
            )
    missed = "" if over <= TARGET_BYTES else "  MISSED"
    print(f"highest peak - share: {over >> 20} MiB (target <= {TARGET_BYTES >> 20}){missed}")


if __name__ == "__main__":
    main()
