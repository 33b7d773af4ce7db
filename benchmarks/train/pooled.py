"""Lookups with a combiner: fused, not fused, and plain TensorFlow without communication; on two workers.

Usage: python benchmarks/train/pooled.py [--dim 16] [--hot 10] [--rows 200000] [--function sparse] [--tables sharded]
[--launches 3].

Workload: `multi_hot` of benchmarks/peers/workloads.py, the same data and model that other libraries are compared with.
An example has 1 to 2 * hot - 1 ids of each feature, and a table has at most `--rows` rows.

- `fused`: The option's default.
- `apart`: `fused_lookups=False`: TensorFlow drops duplicates, gathers and sums.
- `plain`: Each worker trains by itself, in plain TensorFlow.

`--function safe` takes safe_embedding_lookup_sparse and sparse ids. `--tables replicated` leaves the tables replicated;
a step is then mainly the exchange of their gradients, so `--rows 2000` is a fitting limit.

`samples` counts the examples of all workers. One program builds all three, and its workers run them in turns
(turns.py). Target: fused at least 1.5 times plain.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import statistics
import sys
from pathlib import Path

import turns

sys.path.append(str(Path(__file__).resolve().parents[1] / "peers"))

import workloads  # noqa: E402

WORKERS = 2
WARM_UP, BLOCKS, STEPS = 2, 7, 4
TARGET = 1.5
PASSED = ("dim", "hot", "rows", "function", "tables", "data")  # flags that workers get


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--dim", type=int, default=16, help="width of the tables (%(default)s)")
    flags.add_argument("--hot", type=int, default=10, help="mean number of ids of a feature (%(default)s)")
    flags.add_argument("--rows", type=int, default=200_000, help="the most rows of a table (%(default)s)")
    flags.add_argument("--function", choices=["sparse", "safe"], default="sparse", help="the lookup (%(default)s)")
    flags.add_argument("--tables", choices=["sharded", "replicated"], default="sharded", help="(%(default)s)")
    flags.add_argument("--launches", type=int, default=3, help="runs of the whole program (%(default)s)")
    flags.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    flags.add_argument("--data", type=Path, default=workloads.DATA, help="(%(default)s)")
    return flags.parse_args()


def workload_of(flags: argparse.Namespace) -> workloads.Workload:
    return dataclasses.replace(workloads.multi_hot(flags.hot, flags.dim), table_rows=flags.rows)


def worker(flags: argparse.Namespace) -> None:
    """Builds the programs and runs them in turns; worker 0 prints the figures."""
    import tensorflow as tf

    import hybridbackend.tensorflow as hb

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    rank = hb.context.rank
    turns.pin(rank, WORKERS)
    data = workloads.prepared(workload_of(flags), flags.data)
    of_tables = hb.embedding_scope if flags.tables == "sharded" else contextlib.nullcontext
    programs = {
        "fused": program(flags, data, rank, hb.scope(fused_lookups=True), of_tables),
        "apart": program(flags, data, rank, hb.scope(fused_lookups=False), of_tables),
        "plain": program(flags, data, rank, contextlib.nullcontext(), contextlib.nullcontext),
    }
    times = turns.measure(programs, WARM_UP, BLOCKS, STEPS)
    if rank == 0:
        turns.report(times)


def program(flags: argparse.Namespace, data: Path, rank: int, scope, scope_of_tables):
    """Returns a function of the batch's number that runs a step."""
    import tensorflow as tf

    import graph
    import process
    from schema import Schema

    def safe(table: tf.Variable, ids: tf.RaggedTensor) -> tf.Tensor:
        return tf.nn.safe_embedding_lookup_sparse(table, ids.to_sparse(), None, combiner="sum")

    lookup = safe if flags.function == "safe" else graph.sum_of_rows
    with tf.Graph().as_default(), scope:
        built = graph.build(workload_of(flags), Schema.load(data), scope_of_tables, lookup=lookup)
        train_op = graph.optimizer().minimize(built.loss)
        session = tf.compat.v1.Session(config=graph.config(threads=1))
        session.run(tf.compat.v1.global_variables_initializer())
        step = built.program(session, train_op).step
    shares = process.shares(data, rank, WORKERS)
    inputs = [built.prepare(batch) for batch in itertools.islice(shares, STEPS)]
    return lambda number: step(inputs[number])


def main() -> None:
    flags = flags_from()
    if flags.worker:
        worker(flags)
        return
    workloads.prepared(workload_of(flags), flags.data)
    batch = workloads.GLOBAL_BATCH
    print(
        f"26 features of {flags.hot} ids, width {flags.dim}, {WORKERS} workers, global batch {batch}, "
        f"{flags.tables} tables, {flags.function}",
        flush=True,
    )
    environment = {"PYTHONPATH": workloads.PYTHONPATH}
    runs = [turns.launch(__file__, flags, PASSED, WORKERS, environment) for _ in range(flags.launches)]
    print(f"{'':8}{'step ms':>9}{'lowest':>9}{'highest':>9}{'samples/s':>11}{'x plain':>9}")
    for name in runs[0]:
        every = [run[name] for run in runs]
        value, ratio = statistics.median(every), statistics.median(run["plain"] / run[name] for run in runs)
        print(f"{name:8}{value:9.2f}{min(every):9.2f}{max(every):9.2f}{batch / value * 1e3:11.0f}{ratio:9.2f}")
    ratio = statistics.median(run["plain"] / run["fused"] for run in runs)
    print(f"fused / plain: {ratio:.2f} (target >= {TARGET}){'' if ratio >= TARGET else '  MISSED'}")


if __name__ == "__main__":
    main()
