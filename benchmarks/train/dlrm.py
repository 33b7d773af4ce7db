"""Training speed of DLRM on two workers, compared with plain TensorFlow in the same run.

Usage: python benchmarks/train/dlrm.py [--dim 64] [--launches 3] [--workers 2].

Workload: data of Criteo's shape, with 13 numeric and 26 categorical features. Their cardinalities are those of the
Kaggle data, cut to 200,000 rows, with ids of zipf(1.05). The model is DLRM with bottom MLP 512-256-D, top MLP 512-256-1
and embeddings of width D. Adagrad trains it with a global batch of 4096.

The systems start in turn, so that a change of the machine's load affects all of them:
- `plain`: One process of stock TensorFlow with as many threads as there are workers, and the whole batch.
- `apart`: As many processes of stock TensorFlow as workers, with one thread each, each with its part of the batch. They
  do not exchange. This is the speed without any cost of exchange (and no training: the models drift apart).
- `lockstep`: The workers, with one thread each, sharded tables and exchanged gradients.

Clock: batches are in memory. After 15 steps, 60 steps are timed; each fetches the loss. Samples/s of a system are the
sum over its processes, and the table shows the median of the launches. `busy elsewhere` is other programs' load in
cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "ranking"
GLOBAL_BATCH = 4096
WARM_UP, TIMED = 15, 60
SYSTEMS = ("plain", "apart", "lockstep")


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--dim", type=int, default=16, help="width of the embeddings (%(default)s)")
    flags.add_argument("--workers", type=int, default=2, help="(%(default)s)")
    flags.add_argument("--launches", type=int, default=3, help="launches of each system (%(default)s)")
    flags.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="(all)")
    flags.add_argument("--grad-nbuckets", type=int, default=1, help="buckets of dense gradients (%(default)s)")
    flags.add_argument("--data", type=Path, default=ROOT / "build" / "benchmark-data", help="(%(default)s)")
    flags.add_argument("--json", type=Path, help="also write all figures there")
    flags.add_argument("--worker", nargs=4, metavar=("SYSTEM", "FOLDER", "RANK", "SIZE"), help=argparse.SUPPRESS)
    return flags.parse_args()


# One process.


def worker(flags: argparse.Namespace) -> None:
    """Builds the model, reports that it is ready, waits for its start and prints its figures."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    system, folder, rank, size = flags.worker[0], flags.worker[1], int(flags.worker[2]), int(flags.worker[3])
    scope = lockstep_scope(flags) if system == "lockstep" else None
    threads = flags.workers if system == "plain" else 1
    config = tf1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    with tf.Graph().as_default():
        if scope is None:
            train_op, loss, feeds = build(folder, flags.dim)
            session = tf1.train.MonitoredTrainingSession("", config=config)
            figures = measure(session, train_op, loss, batches(folder, feeds, rank, size))
        else:
            import hybridbackend.tensorflow as hb

            with scope:
                train_op, loss, feeds = build(folder, flags.dim, hb.embedding_scope)
                session = tf1.train.MonitoredTrainingSession("", config=config)
                figures = measure(session, train_op, loss, batches(folder, feeds, rank, size))
    print("FIGURES", json.dumps(figures), flush=True)


def lockstep_scope(flags: argparse.Namespace):
    import hybridbackend.tensorflow as hb

    return hb.scope(grad_nbuckets=flags.grad_nbuckets)


def build(folder: str, dim: int, *embedding_scope):
    """Returns the training graph: train_op, loss, and the placeholders by column."""
    import tensorflow as tf

    from inputs import placeholders
    from models import OPTIMIZERS, dlrm, mean_loss
    from schema import LABEL, Schema

    features, feeds = placeholders(Schema.load(folder))
    loss = mean_loss(dlrm(features, Schema.load(folder), dim, *embedding_scope), feeds[LABEL])
    step = tf.compat.v1.train.get_or_create_global_step()
    return OPTIMIZERS["adagrad"](0.01).minimize(loss, step), loss, feeds


def batches(folder: str, feeds: dict, rank: int, size: int) -> list[dict]:
    """Returns a process's part of every global batch, in memory."""
    from inputs import feed
    from reader import batches as read
    from schema import TRAIN

    part = GLOBAL_BATCH // size
    rows = slice(rank * part, (rank + 1) * part)
    whole = itertools.islice(read(folder, TRAIN, GLOBAL_BATCH), WARM_UP + TIMED)
    return [feed(feeds, {name: column[rows].copy() for name, column in batch.items()}) for batch in whole]


def measure(session, train_op, loss, fed: list[dict]) -> dict:
    """Warms up, and times the steps from the common start on."""
    with session:
        for feed_dict in fed[:WARM_UP]:
            session.run([train_op, loss], feed_dict)
        print("READY", flush=True)
        sys.stdin.readline()
        cpu, started = time.process_time(), time.perf_counter()
        ended = []
        for feed_dict in fed[WARM_UP:]:
            _, value = session.run([train_op, loss], feed_dict)
            ended.append(time.perf_counter())
        wall, cpu = ended[-1] - started, time.process_time() - cpu
    times = [after - before for before, after in zip([started, *ended], ended, strict=False)]
    return {
        "samples_per_s": len(next(iter(fed[0].values()))) * TIMED / wall,
        "wall_s": wall,
        "step_ms": statistics.median(times) * 1e3,
        "cpu_s": cpu,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "loss": float(value),
    }


# The parent.


def launch(system: str, flags: argparse.Namespace, folder: str) -> dict:
    """Runs a system once; its processes start their clocks together."""
    size = 1 if system == "plain" else flags.workers
    variables = [{} for _ in range(size)]
    if system == "lockstep":
        from lockstep.testing.workers import worker_variables

        variables = worker_variables(size)
    processes = []
    try:
        for rank in range(size):
            command = [sys.executable, __file__, "--dim", str(flags.dim), "--workers", str(flags.workers)]
            command += ["--grad-nbuckets", str(flags.grad_nbuckets), "--worker", system, folder, str(rank), str(size)]
            environment = {**os.environ, **variables[rank], "PYTHONPATH": str(EXAMPLE), "CUDA_VISIBLE_DEVICES": ""}
            environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
            processes.append(
                subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for process in processes:
            wait_for(process, "READY", system)
        busy = busy_seconds()
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        parts = [json.loads(wait_for(process, "FIGURES", system)) for process in processes]
        busy = busy_seconds() - busy
    finally:
        for process in processes:
            process.kill()
            process.wait()
    wall, cpu = max(part["wall_s"] for part in parts), sum(part["cpu_s"] for part in parts)
    return {
        "samples_per_s": sum(part["samples_per_s"] for part in parts),
        "step_ms": statistics.mean(part["step_ms"] for part in parts),
        "peak_gib": max(part["peak_gib"] for part in parts),
        "busy_elsewhere": max(0.0, busy - cpu) / wall,
        "loss": statistics.mean(part["loss"] for part in parts),
    }


def wait_for(process: subprocess.Popen, word: str, system: str) -> str:
    """Returns the rest of the first output line of the process that begins with the word."""
    for line in process.stdout:
        if line.startswith(word):
            return line[len(word) :].strip()
    raise RuntimeError(f"{system}: a process ended with exit code {process.wait()} before it printed {word}")


def busy_seconds() -> float:
    """Returns the CPU time that all processes of the machine have used."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:7])) / os.sysconf("SC_CLK_TCK")


def prepared(folder: Path) -> str:
    """Returns the workload's data, which is generated once."""
    command = [sys.executable, str(EXAMPLE / "data.py"), "--out", str(folder), "--max-table-rows", "200000"]
    command += ["--zipf", "1.05", "--rows", str((WARM_UP + TIMED) * GLOBAL_BATCH), "--eval-rows", "4096"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def print_table(runs: dict[str, list[dict]]) -> None:
    """Prints medians of the launches, and ratios to the two kinds of plain TensorFlow."""
    median = {
        system: {name: statistics.median(run[name] for run in launches) for name in launches[0]}
        for system, launches in runs.items()
    }
    print(
        f"{'':10}{'samples/s':>11}{'lowest':>10}{'highest':>10}{'step ms':>9}{'GiB':>6}{'x plain':>9}{'x apart':>9}"
        f"{'busy elsewhere':>16}"
    )
    for system, figures in median.items():
        speeds = [run["samples_per_s"] for run in runs[system]]
        ratios = [
            f"{figures['samples_per_s'] / median[other]['samples_per_s']:9.2f}" if other in median else f"{'-':>9}"
            for other in ("plain", "apart")
        ]
        print(
            f"{system:10}{figures['samples_per_s']:11,.0f}{min(speeds):10,.0f}{max(speeds):10,.0f}"
            f"{figures['step_ms']:9.1f}{figures['peak_gib']:6.2f}{''.join(ratios)}{figures['busy_elsewhere']:16.2f}"
        )


def main() -> None:
    flags = flags_from()
    if flags.worker:
        worker(flags)
        return
    folder = prepared(flags.data)
    print(f"DLRM, embeddings of width {flags.dim}, {flags.workers} workers, global batch {GLOBAL_BATCH}", flush=True)
    runs: dict[str, list[dict]] = {system: [] for system in flags.systems}
    for number in range(flags.launches):
        for system in flags.systems:
            print(f"launch {number + 1} of {flags.launches}: {system} ...", end="", file=sys.stderr, flush=True)
            runs[system].append(launch(system, flags, folder))
            print(f" {runs[system][-1]['samples_per_s']:,.0f} samples/s", file=sys.stderr, flush=True)
    print_table(runs)
    if flags.json:
        flags.json.write_text(json.dumps({"dim": flags.dim, "workers": flags.workers, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
