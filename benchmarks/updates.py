"""A training step of one table, with TensorFlow's own sparse updates and with fused ones, in one process.

Usage: python benchmarks/updates.py [--seconds S] [--rows R] [--threads T]

Method: a step looks up 65,536 ids, computes the gradient of the sum of their rows' squares, and applies it. The two
graphs differ only in the option `fused_updates`, and their tables are in memory at the same time. Steps of the two run
in turns; a row has their medians. `update` is the optimizer's part: the step less one that ends with the gradient. "26
tables" divides the rows and ids of one table among 26.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from lockstep._src.scope import scope
from lockstep._src.tables.updates.lazy_adam import LazyAdamOptimizer

tf1 = tf.compat.v1
IDS = 65536
OPTIMIZERS = {
    "SGD": lambda: tf1.train.GradientDescentOptimizer(0.01),
    "Adagrad": lambda: tf1.train.AdagradOptimizer(0.01),
    "FTRL": lambda: tf1.train.FtrlOptimizer(0.01),
    "lazy Adam": lambda: LazyAdamOptimizer(0.01),
    "Adam": lambda: tf1.train.AdamOptimizer(0.01),
}


def draw_ids(distribution: str, rows: int) -> np.ndarray:
    """Returns [IDS] int64 in [0, rows)."""
    random = np.random.default_rng(1)
    if distribution == "uniform":
        return random.integers(0, rows, IDS)
    weights = np.arange(1, rows + 1) ** -1.05
    # Chance decides which ids are frequent, as in data.
    return random.permutation(rows)[random.choice(rows, IDS, p=weights / weights.sum())]


def build(optimizer: str, rows: int, dim: int, tables: int, ids: list[np.ndarray]) -> tuple[list[object], list[object]]:
    """Returns, for each array of ids, a session's fetches for a whole step, and for its gradients."""
    variables = [
        tf1.get_variable(f"table{i}", [rows // tables, dim], initializer=tf1.ones_initializer(), use_resource=True)
        for i in range(tables)
    ]
    made = OPTIMIZERS[optimizer]()
    steps, gradients = [], []
    for array in ids:
        parts = [tf1.Variable(part % (rows // tables), trainable=False) for part in np.array_split(array, tables)]
        found = [tf.nn.embedding_lookup(v, part) for v, part in zip(variables, parts, strict=True)]
        pairs = made.compute_gradients(tf.add_n([tf.nn.l2_loss(rows) for rows in found]), variables)
        # One element of each, because unused results are optimized away.
        gradients.append([g.values[0, 0] for g, _ in pairs])
        steps.append(made.apply_gradients(pairs))
    return steps, gradients


def in_turns(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """Returns the median time of each call, in seconds; all calls together take about `seconds`."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def measure(optimizer: str, ids: dict[str, np.ndarray], dim: int, tables: int, options: argparse.Namespace) -> None:
    """Prints the rows of one optimizer and one size."""
    rows, threads = options.rows, options.threads
    config = tf1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    with contextlib.ExitStack() as stack:
        by_kind = []
        for fused in (False, True):
            graph = tf.Graph()
            with graph.as_default(), scope(fused_updates=fused):
                steps, gradients = build(optimizer, rows, dim, tables, list(ids.values()))
                # The scope's own session would be one of a job.
                session = stack.enter_context(tf1.Session(graph=graph, config=config))
                session.run(tf1.global_variables_initializer())
            by_kind.append([[session.make_callable(op) for op in ops] for ops in (steps, gradients)])
        for i, distribution in enumerate(ids):
            calls = [kind[part][i] for kind in by_kind for part in (0, 1)]
            plain, plain_gradient, fused, fused_gradient = in_turns(calls, options.seconds)
            updates = max(plain - plain_gradient, 1e-9), max(fused - fused_gradient, 1e-9)
            print(
                f"{optimizer:<12}{'26 tables' if tables > 1 else f'{rows:,} x {dim}':<16}{distribution:<10}"
                f"{plain * 1e3:>9.2f} ms{fused * 1e3:>9.2f} ms{plain / fused:>8.1f} x{IDS / fused / 1e6:>10.1f} M/s"
                f"{updates[0] * 1e3:>10.2f} ms{updates[1] * 1e3:>9.2f} ms{updates[0] / updates[1]:>8.1f} x",
                flush=True,
            )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.25, help="time for each row, roughly")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(
        f"{'optimizer':<12}{'table':<16}{'ids':<10}{'plain step':>12}{'fused':>12}{'ratio':>10}{'ids':>14}"
        f"{'plain update':>13}{'fused':>12}{'ratio':>10}"
    )
    ids = {distribution: draw_ids(distribution, options.rows) for distribution in ("uniform", "zipf")}
    # If all rows change, the ids make no difference.
    uniform = {"uniform": ids["uniform"]}
    for optimizer in OPTIMIZERS:
        measure(optimizer, uniform if optimizer == "Adam" else ids, 16, 1, options)
    for optimizer in ("SGD", "Adagrad", "Adam"):
        measure(optimizer, uniform, 64, 1, options)
    measure("Adagrad", ids, 16, 26, options)


if __name__ == "__main__":
    main()
