"""The memory and the time of a large table's life: start, steps, a save, restores by other workers, an export.

Usage: python benchmarks/memory.py [--rows 10000000] [--dim 32] [--initializer uniform] [--workers 2]
[--restore-on 1 3] [--folder DIR].

Workload: `hb.scope()` in a graph of TensorFlow 1 has one table of `rows` rows, drawn with a seed, and Adagrad's slot.
This program starts the workers, with the launcher's settings of malloc. A worker's share is the bytes of its rows
and of their slot. The checkpoint is as large as the shares of all workers. It is written to a temporary folder, or to
DIR, and removed.

| line | is |
| --- | --- |
| fill | the time to fill a share of new memory once, in pages of 4 KiB, on all workers at once |
| start | the time of the variables' initializers |
| steps | the median time of a training step |
| save | the time of `Saver.save` |
| restore on N | the time of `Saver.restore` in a job of N workers that has initialized nothing |
| export | the time of `hb.train.export` in one process |

Peaks are the highest resident memory of a worker in the phase, above that before the variables exist, less the share.
After a restore, some rows are compared with the ones that were saved. A single worker's table is TensorFlow's own
variable.

Targets: a start takes at most 3 fills; its peak, and the peaks of saves and restores of several workers, are at most
the share and 256 MiB.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable

IDS, STEPS = 4096, 20
TARGET_MIB, TARGET_FILLS = 256, 3
INITIALIZERS = ("uniform", "normal", "truncated_normal", "zeros")


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rows", type=int, default=10_000_000, help="rows of the table (%(default)s)")
    flags.add_argument("--dim", type=int, default=32, help="width of the table (%(default)s)")
    flags.add_argument("--initializer", choices=INITIALIZERS, default="uniform", help="(%(default)s)")
    flags.add_argument("--workers", type=int, default=2, help="workers that start and save (%(default)s)")
    flags.add_argument("--restore-on", type=int, nargs="*", default=[1, 3], help="workers of restores (%(default)s)")
    flags.add_argument("--folder", help="where a folder for the checkpoint is made; default: the system's")
    flags.add_argument("--phase", choices=["train", "restore", "export"], help=argparse.SUPPRESS)
    flags.add_argument("--timeout-s", type=float, default=1800, help="deadline of each phase, in seconds (%(default)s)")
    return flags.parse_args()


# A worker.


def resident(name: str) -> int:
    """Returns a line of /proc/self/status in bytes: VmRSS, or the highest value so far, VmHWM."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name + ":"))


class Phases:
    """Measures the time of phases, and the highest memory in each above that at the beginning."""

    def __init__(self) -> None:
        self._before = resident("VmRSS")
        self.figures: dict[str, dict[str, float]] = {}

    def run(self, name: str, work):
        """Runs a phase, and returns its result."""
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # VmHWM starts again at VmRSS
        began = time.perf_counter()
        result = work()
        self.figures[name] = {"s": time.perf_counter() - began, "bytes": resident("VmHWM") - self._before}
        return result


def fill(size: int) -> float:
    import numpy as np

    began = time.perf_counter()
    with mmap.mmap(-1, size) as memory:
        array = np.frombuffer(memory, np.float32)
        array.fill(0.1)
        del array
    return time.perf_counter() - began


def median_of_steps(step: Callable[[], object]) -> float:
    """Returns the median of the seconds that steps take."""
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return sorted(times)[STEPS // 2]


def work(flags: argparse.Namespace) -> None:
    """Runs a phase, and prints this worker's figures."""
    import tensorflow as tf

    import hybridbackend.tensorflow as hb

    tf1 = tf.compat.v1
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    path = f"{flags.folder}/model.ckpt"
    initializer = {
        "uniform": tf1.random_uniform_initializer(-0.1, 0.1, seed=1),
        "normal": tf1.random_normal_initializer(stddev=0.1, seed=1),
        "truncated_normal": tf1.truncated_normal_initializer(stddev=0.1, seed=1),
        "zeros": tf1.zeros_initializer(),
    }[flags.initializer]

    def lookup(ids):
        with hb.embedding_scope():
            shape = [flags.rows, flags.dim]
            table = tf1.get_variable("table", shape, initializer=initializer, use_resource=True)
        return table, tf.nn.embedding_lookup(table, ids)

    def signature():
        ids = tf1.placeholder(tf.int64, [None], "ids")
        _, rows = lookup(ids)
        return tf1.saved_model.predict_signature_def({"ids": ids}, {"rows": rows})

    if flags.phase == "export":
        phases = Phases()
        phases.run("export", lambda: hb.train.export(f"{flags.folder}/export", f"{path}-1", signature))
        print("FIGURES", json.dumps({"share": 0, "phases": phases.figures}), flush=True)
        return
    with tf.Graph().as_default(), hb.scope():
        table, found = lookup(tf.random.uniform([IDS], 0, flags.rows, tf.int64, seed=hb.context.rank))
        train_op = tf1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(found)))
        checked = tf.nn.embedding_lookup(table, tf.range(0, flags.rows, max(1, flags.rows // 1000), tf.int64))
        init_op, saver = tf1.global_variables_initializer(), tf1.train.Saver()
        with tf1.Session() as session:
            session.run(tf.constant(0))
            share = 2 * table.shape.num_elements() * table.dtype.size
            figures = {"share": share}
            if flags.phase == "train":
                figures["fill"] = fill(share)
            phases = Phases()
            if flags.phase == "train":
                phases.run("start", lambda: session.run(init_op))
                session.run(train_op)

                def steps() -> None:
                    figures["step"] = median_of_steps(lambda: session.run(train_op))

                phases.run("steps", steps)
                phases.run("save", lambda: saver.save(session, path, 1, write_meta_graph=False))
            else:
                phases.run("restore", lambda: saver.restore(session, f"{path}-1"))
            figures["sum"] = float(session.run(checked).astype("float64").sum())
            phases.run("step after", lambda: session.run(train_op))
            figures["phases"] = phases.figures
    print("FIGURES", json.dumps(figures), flush=True)


# The parent.


def launch(flags: argparse.Namespace, phase: str, workers: int) -> list[dict]:
    """Returns the figures of each worker of a phase."""
    from lockstep.launch.placement.worker_environment import KEEP_MEMORY
    from lockstep.testing import run_workers

    command = [sys.executable, __file__, f"--phase={phase}", f"--folder={flags.folder}"]
    command += [f"--{name}={getattr(flags, name)}" for name in ("rows", "dim", "initializer")]
    environment = {**KEEP_MEMORY, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    outputs = run_workers(workers, command, timeout_s=flags.timeout_s, environment=environment)
    lines = [next(line for line in output.splitlines() if line.startswith("FIGURES")) for output in outputs]
    return [json.loads(line[len("FIGURES") :]) for line in lines]


def show(name: str, measured: list[dict], phase: str, *, target: bool) -> None:
    """Prints a phase: the slowest worker's time, and the highest peak above the share."""
    seconds = max(one["phases"][phase]["s"] for one in measured)
    above = max(one["phases"][phase]["bytes"] - one["share"] for one in measured) >> 20
    missed = "  MISSED" if target and above > TARGET_MIB else ""
    print(f"{name:14}{seconds:9.2f} s{above:12} MiB above the share{missed}", flush=True)


def main() -> None:
    flags = flags_from()
    if flags.phase:
        work(flags)
        return
    flags.folder = tempfile.mkdtemp(dir=flags.folder)
    try:
        print(f"{flags.rows} rows x {flags.dim}, {flags.initializer}, Adagrad, {flags.workers} workers", flush=True)
        trained = launch(flags, "train", flags.workers)
        filled = max(one["fill"] for one in trained)
        started = max(one["phases"]["start"]["s"] for one in trained)
        several = flags.workers > 1
        print(f"{'share':14}{trained[0]['share'] >> 20:9} MiB on each worker", flush=True)
        missed = "" if started <= TARGET_FILLS * filled else "  MISSED"
        print(f"{'fill':14}{filled:9.2f} s; a start takes {started / filled:.2f} times that{missed}", flush=True)
        show("start", trained, "start", target=several)
        print(f"{'steps':14}{1000 * max(one['step'] for one in trained):9.2f} ms", flush=True)
        show("save", trained, "save", target=several)
        for workers in flags.restore_on:
            restored = launch(flags, "restore", workers)
            show(f"restore on {workers}", restored, "restore", target=workers > 1)
            sums = {one["sum"] for one in [*trained, *restored]}
            if len(sums) > 1:
                raise SystemExit(f"restored rows differ: {sums}")
        show("export", launch(flags, "export", 1), "export", target=True)
    finally:
        shutil.rmtree(flags.folder)


if __name__ == "__main__":
    main()
