"""Lookups and training steps of a dynamic table beside a plain `tf.Variable`, and TFRA's table where that installs.

Usage: python benchmarks/embedding.py [--seconds S] [--rows 1000000 5000000] [--dims 16 64] [--tfra PYTHON]

Method: one process with two threads. Tables hold `rows` keys; a batch is 65,536 of them, uniform or zipf(1.05), another
one in each of 8 turns. Batches lie in the graph, as those that a dataset hands over: what it costs to feed an array
would be a third of a lookup. Both tables lie in memory at the same time, and their calls take turns, so that what else
the machine does meets both; a row has the medians, in million keys a second. `lookup` (of a dynamic table: one of
evaluation, without a trace) gives the rows [65536, D] to an operation that reads one element of them; `train` is a
lookup, the gradient of the sum of the rows' squares, and Adagrad. Keys of the dynamic table are the variable's row
numbers, scattered over all int64.

TFRA (tensorflow-recommenders-addons) needs an older TensorFlow, and so a process of its own, right after ours: that of
the environment that `tools/setup.sh peers` makes, or of `--tfra`.
"""

from __future__ import annotations

import argparse
import functools
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
LAWS = ("uniform", "zipf")
_PEERS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".venv-peers", "bin", "python")

Call = Callable[[], object]


def scattered(rows: np.ndarray) -> np.ndarray:
    """An int64 for each row number, no two the same: the finalizer of splitmix64."""
    with np.errstate(over="ignore"):
        x = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (x ^ (x >> np.uint64(31))).view(np.int64)


def batches(law: str, rows: int) -> list[np.ndarray]:
    """[IDS] int64 in [0, rows), one for each turn."""
    random = np.random.default_rng(1)
    if law == "uniform":
        return [random.integers(0, rows, IDS) for _ in range(TURNS)]
    weights = np.cumsum(np.arange(1, rows + 1) ** -1.05)
    # Which of the rows are frequent is left to chance, as in data.
    places = random.permutation(rows)
    return [places[np.searchsorted(weights, random.random(IDS) * weights[-1])] for _ in range(TURNS)]


class Graph:
    """A table in a graph of its own, filled, and what is measured on it."""

    def __init__(self, kind: str, rows: int, dim: int) -> None:
        self._kind, self._rows, self._dim = kind, rows, dim
        self._calls: dict[str, Callable[[int], object]] = {}
        with tf.Graph().as_default():
            config = tf1.ConfigProto(intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=THREADS)
            self._session = tf1.Session(config=config)
            self._table = getattr(self, f"_{kind}")()
            self._turn = tf1.placeholder(tf.int64, [])
            nodes = {}
            for law in LAWS:
                numbers = np.stack(batches(law, rows))
                ids = tf.constant(numbers if kind == "variable" else scattered(numbers))[self._turn]
                nodes[f"{law} lookup"] = self._look_up(ids, training=False)[0][0, 0]
                trained, variables = self._look_up(ids, training=True)
                optimizer = self._optimizer()
                pairs = optimizer.compute_gradients(tf.nn.l2_loss(trained), variables)
                nodes[f"{law} train"] = optimizer.apply_gradients(pairs)
            given = tf1.placeholder(tf.int64, [None])
            fill = self._fill(given)
            self._session.run(tf1.global_variables_initializer())
            for first in range(0, rows, FILL):
                if fill is not None:
                    self._session.run(fill, {given: scattered(np.arange(first, min(rows, first + FILL)))})
        for what, node in nodes.items():
            self._calls[what] = self._session.make_callable(node, [self._turn])

    def calls(self, what: str) -> Iterator[Call]:
        """One call after another, each with another batch."""
        function, turn = self._calls[what], 0
        while True:
            yield functools.partial(function, turn % TURNS)
            turn += 1

    def _variable(self) -> object:
        return tf1.get_variable("table", [self._rows, self._dim], initializer=tf1.ones_initializer(), use_resource=True)

    def _dynamic(self) -> object:
        from lockstep.embedding import get_embedding_variable

        return get_embedding_variable("table", self._dim, initializer=tf1.ones_initializer())

    def _tfra(self) -> object:
        import tensorflow_recommenders_addons as tfra

        return tfra.dynamic_embedding.get_variable(
            "table", tf.int64, tf.float32, dim=self._dim, devices=["/CPU:0"], initializer=1.0, init_size=2 * self._rows
        )

    def _look_up(self, ids: tf.Tensor, training: bool) -> tuple[tf.Tensor, list[object]]:
        """The rows, and what an optimizer is to train."""
        if self._kind == "tfra":
            import tensorflow_recommenders_addons as tfra

            rows, trainable = tfra.dynamic_embedding.embedding_lookup(self._table, ids, return_trainable=True)
            return rows, [trainable]
        if self._kind == "variable" or training:
            return tf.nn.embedding_lookup(self._table, ids), [self._table]
        from lockstep.embedding import evaluating

        with evaluating():
            return tf.nn.embedding_lookup(self._table, ids), []

    def _optimizer(self) -> tf1.train.Optimizer:
        optimizer = tf1.train.AdagradOptimizer(0.01)
        if self._kind != "tfra":
            return optimizer
        import tensorflow_recommenders_addons as tfra

        return tfra.dynamic_embedding.DynamicEmbeddingOptimizer(optimizer)

    def _fill(self, keys: tf.Tensor) -> object:
        if self._kind == "tfra":
            return self._table.upsert(keys, tf.ones([tf.size(keys), self._dim]))
        return self._look_up(keys, training=True)[0][0, 0] if self._kind == "dynamic" else None


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
    """Million keys a second, by "law what", and kind."""
    graphs = [Graph(kind, rows, dim) for kind in kinds]
    results: dict[str, dict[str, float]] = {}
    for what in (f"{law} {what}" for law in LAWS for what in ("lookup", "train")):
        times = in_turns([graph.calls(what) for graph in graphs], seconds)
        results[what] = {kind: IDS / taken / 1e6 for kind, taken in zip(kinds, times, strict=True)}
    return results


def main() -> None:
    """Prints a line for each number of rows, dimension, distribution and call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="for each line")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--tfra", default=_PEERS if os.path.exists(_PEERS) else None, help="a Python that has TFRA")
    parser.add_argument("--kinds", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kinds:
        print(json.dumps(measure(args.kinds, args.rows[0], args.dims[0], args.seconds)))
        return
    print(f"million keys/s, {IDS} keys a call, {THREADS} threads")
    print(
        f"{'rows':>9} {'dim':>4} {'':16} {'variable':>9} {'dynamic':>9} {'ratio':>6}"
        + ("      TFRA  ratio" * bool(args.tfra))
    )
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
