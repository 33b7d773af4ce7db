"""Lookups and training steps of a dynamic table beside a plain `tf.Variable`, and TFRA's table where it can be imported.

Usage: python benchmarks/embedding.py [--seconds S] [--rows 1000000 5000000] [--dims 16 64] [--tfra PYTHON]

Method: one process with two threads. Tables hold `rows` keys; a batch is 65,536 of them, uniform or zipf(1.05), another
one in each of 8 turns. Both tables lie in memory at the same time, and their calls take turns, so that what else the
machine does meets both; a row has the medians, in million keys a second. `lookup` gives the rows [65536, D] to an operation
that reads one element of them; `train` is a lookup, the gradient of the sum of the rows' squares, and Adagrad. Keys of
the dynamic table are the variable's row numbers, scattered over all int64.

TFRA (tensorflow-recommenders-addons) needs an older TensorFlow: with `--tfra`, the interpreter of an environment that has
both runs the same calls on its table and variable of that TensorFlow. Its column is compared with the same run's variable.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
IDS, TURNS, THREADS = 65536, 8, 2
FILL = 1 << 18

Call = Callable[[], object]


def scattered(rows: np.ndarray) -> np.ndarray:
    """An int64 for each row number, no two the same: the finalizer of splitmix64."""
    with np.errstate(over="ignore"):
        x = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (x ^ (x >> np.uint64(31))).view(np.int64)


def batches(distribution: str, rows: int) -> list[np.ndarray]:
    """[IDS] int64 in [0, rows), one for each turn."""
    random = np.random.default_rng(1)
    if distribution == "uniform":
        return [random.integers(0, rows, IDS) for _ in range(TURNS)]
    weights = np.cumsum(np.arange(1, rows + 1) ** -1.05)
    # Which of the rows are frequent is left to chance, as in data.
    places = random.permutation(rows)
    return [places[np.searchsorted(weights, random.random(IDS) * weights[-1])] for _ in range(TURNS)]


class Graph:
    """A table in a graph of its own, and the calls on it."""

    def __init__(self, kind: str, rows: int, dim: int) -> None:
        self.kind, self.rows, self.dim = kind, rows, dim
        with tf.Graph().as_default():
            self._ids = tf1.placeholder(tf.int64, [None])
            table, lookup = getattr(self, f"_{kind}")()
            pairs = self._optimizer(tf1.train.AdagradOptimizer(0.01)).compute_gradients(tf.nn.l2_loss(lookup), [table])
            self._read = lookup[0, 0]
            self._step = self._made.apply_gradients(pairs)
            config = tf1.ConfigProto(intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=THREADS)
            self._session = tf1.Session(config=config)
            self._session.run(tf1.global_variables_initializer())
            if kind != "variable":
                for first in range(0, rows, FILL):
                    self._session.run(self._read, {self._ids: scattered(np.arange(first, min(rows, first + FILL)))})
                    self._fill(first)

    def _fill(self, first: int) -> None:
        if self.kind == "tfra":
            keys = scattered(np.arange(first, min(self.rows, first + FILL)))
            self._session.run(self._insert, {self._ids: keys})

    def _optimizer(self, optimizer: tf1.train.Optimizer) -> tf1.train.Optimizer:
        if self.kind == "tfra":
            import tensorflow_recommenders_addons as tfra

            optimizer = tfra.dynamic_embedding.DynamicEmbeddingOptimizer(optimizer)
        self._made = optimizer
        return optimizer

    def _variable(self) -> tuple[object, tf.Tensor]:
        shape = [self.rows, self.dim]
        table = tf1.get_variable("table", shape, initializer=tf1.ones_initializer(), use_resource=True)
        return table, tf.nn.embedding_lookup(table, self._ids)

    def _dynamic(self) -> tuple[object, tf.Tensor]:
        from lockstep._src.embedding import get_embedding_variable

        table = get_embedding_variable("table", self.dim, initializer=tf1.ones_initializer())
        return table, tf.nn.embedding_lookup(table, self._ids)

    def _tfra(self) -> tuple[object, tf.Tensor]:
        import tensorflow_recommenders_addons as tfra

        variable = tfra.dynamic_embedding.get_variable(
            "table", tf.int64, tf.float32, dim=self.dim, devices=["/CPU:0"], initializer=1.0, init_size=2 * self.rows
        )
        self._insert = variable.upsert(self._ids, tf.ones([tf.size(self._ids), self.dim]))
        lookup, trainable = tfra.dynamic_embedding.embedding_lookup(variable, self._ids, return_trainable=True)
        return trainable, lookup

    def calls(self, distribution: str) -> dict[str, Iterator[Call]]:
        """What to call, by name; each gives one call after another, with another batch."""
        ids = batches(distribution, self.rows)
        if self.kind != "variable":
            ids = [scattered(part) for part in ids]
        feeds = {name: self._session.make_callable(node, [self._ids]) for name, node in self._nodes().items()}
        return {name: _turns(function, ids) for name, function in feeds.items()}

    def _nodes(self) -> dict[str, object]:
        return {"lookup": self._read, "train": self._step}


def _turns(function: Callable[[np.ndarray], object], ids: list[np.ndarray]) -> Iterator[Call]:
    turn = 0
    while True:
        batch = ids[turn % len(ids)]
        turn += 1
        yield lambda batch=batch: function(batch)


def in_turns(calls: list[Iterator[Call]], seconds: float) -> list[float]:
    """The median time of each, in seconds; all together take about `seconds`."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        for _ in range(3):
            next(call)()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for call, taken in zip(calls, times, strict=True):
            run = next(call)
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def measure(kinds: list[str], rows: int, dim: int, seconds: float) -> dict[str, dict[str, float]]:
    """Million keys a second, by "distribution what", and kind."""
    graphs = [Graph(kind, rows, dim) for kind in kinds]
    results: dict[str, dict[str, float]] = {}
    for distribution in ("uniform", "zipf"):
        calls = [graph.calls(distribution) for graph in graphs]
        for what in ("lookup", "train"):
            times = in_turns([c[what] for c in calls], seconds)
            results[f"{distribution} {what}"] = {k: IDS / t / 1e6 for k, t in zip(kinds, times, strict=True)}
    return results


def main() -> None:
    """Prints a line for each number of rows, dimension, distribution and call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="for each line")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--tfra", help="Python interpreter of an environment with TensorFlow and TFRA")
    parser.add_argument("--kinds", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kinds:
        print(json.dumps(measure(args.kinds, args.rows[0], args.dims[0], args.seconds)))
        return
    print(f"million keys/s, {IDS} keys a call, {THREADS} threads")
    print(f"{'rows':>9} {'dim':>4} {'':16} {'variable':>9} {'dynamic':>9} {'ratio':>6}" + ("      TFRA  ratio" * bool(args.tfra)))
    for rows in args.rows:
        for dim in args.dims:
            results = measure(["variable", "dynamic"], rows, dim, args.seconds)
            peers = _of_tfra(args, rows, dim) if args.tfra else {}
            for what, of in results.items():
                line = f"{rows:>9} {dim:>4} {what:16} {of['variable']:9.1f} {of['dynamic']:9.1f}"
                line += f" {of['dynamic'] / of['variable']:6.2f}"
                if what in peers:
                    line += f" {peers[what]['tfra']:9.1f} {of['dynamic'] / peers[what]['tfra']:6.1f}"
                print(line, flush=True)


def _of_tfra(args: argparse.Namespace, rows: int, dim: int) -> dict[str, dict[str, float]]:
    command = [args.tfra, __file__, "--kinds", "tfra", "--rows", str(rows), "--dims", str(dim)]
    command += ["--seconds", str(args.seconds)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    return json.loads(out.splitlines()[-1])


if __name__ == "__main__":
    main()
