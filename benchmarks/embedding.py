"""Lookups and training steps of a dynamic table, of a plain `tf.Variable`, and of TFRA's table if it can be installed.

Usage: python benchmarks/embedding.py [--seconds S] [--rows 1000000 5000000] [--dims 16 64] [--tfra PYTHON]

Method: one process with two threads, TensorFlow 2. Tables hold `rows` keys. A batch is 65,536 of them, uniform or
zipf(1.05). `lookup` is a `tf.function` of 8 consecutive lookups of one batch each; for a dynamic table they are lookups
of evaluation, which leave no trace. `train` is a `tf.function` of 8 steps. Each step is a lookup and Adagrad with a
gradient for each key, without a loss. (A call with a single step would spend a third of its time in Python and in
waking threads.)

Both tables are in memory at the same time. They take turns of three calls each, and the first call does not count. So
other load of the machine affects both, and neither finds the caches full of the other's rows. A line has the medians in
million keys per second, and then the best of the dynamic table's calls. Keys of the dynamic table are the variable's
row numbers, scattered over all int64. The environment sets malloc as the launcher does for its workers.

TFRA (tensorflow-recommenders-addons) needs an older TensorFlow. So it runs in a process of its own, which takes turns
with ours. Its environment is the one that `tools/setup.sh peers` makes, or the one of `--tfra`. A step there is the one
of its documentation: its Keras layer and its optimizer around Keras' Adagrad, with unchanged malloc.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # TFRA

import numpy as np
import tensorflow as tf

IDS, BATCHES, THREADS = 65536, 8, 2
FILL = 1 << 18
LAWS = ("uniform", "zipf")
TURNS = 3  # turns of the processes per line
DEADLINE = 600  # seconds per process
_PEER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".venv-peers/tfra/bin/python")

Call = Callable[[], object]


def scattered(rows: np.ndarray) -> np.ndarray:
    """Returns a different int64 for each row number: the finalizer of splitmix64."""
    with np.errstate(over="ignore"):
        x = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (x ^ (x >> np.uint64(31))).view(np.int64)


def batches(law: str, rows: int) -> list[np.ndarray]:
    """Returns batches of [IDS] int64 in [0, rows)."""
    random = np.random.default_rng(1)
    if law == "uniform":
        return [random.integers(0, rows, IDS) for _ in range(BATCHES)]
    weights = np.cumsum(np.arange(1, rows + 1) ** -1.05)
    # Chance decides which rows are frequent, as in data.
    places = random.permutation(rows)
    return [places[np.searchsorted(weights, random.random(IDS) * weights[-1])] for _ in range(BATCHES)]


class Variable:
    """A `tf.Variable`, to which the others are compared. Keys are its row numbers."""

    def __init__(self, rows: int, dim: int) -> None:
        self._table = tf.Variable(tf.ones([rows, dim]))
        self._optimizer = tf.compat.v1.train.AdagradOptimizer(0.01)

    def keys(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the keys of row numbers."""
        return numbers

    def look_up(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns rows in evaluation."""
        return tf.nn.embedding_lookup(self._table, keys)

    def look_up_in_training(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns rows in training."""
        return tf.nn.embedding_lookup(self._table, keys)

    def variables(self) -> list[object]:
        """Returns the objects that an optimizer trains."""
        return [self._table]

    def apply(self, gradients: list[object]) -> None:
        """Runs the optimizer's step."""
        self._optimizer.apply_gradients(zip(gradients, self.variables(), strict=True))


class Dynamic(Variable):
    """A dynamic table."""

    def __init__(self, rows: int, dim: int) -> None:
        from lockstep import embedding

        self._evaluating = embedding.evaluating
        self._table = embedding.get_embedding_variable("table", dim, initializer=tf.random_normal_initializer())
        self._optimizer = tf.compat.v1.train.AdagradOptimizer(0.01)
        for first in range(0, rows, FILL):
            self.look_up_in_training(tf.constant(self.keys(np.arange(first, min(rows, first + FILL)))))

    def keys(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the keys of row numbers."""
        return scattered(numbers)

    def look_up(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns rows in evaluation."""
        with self._evaluating():
            return tf.nn.embedding_lookup(self._table, keys)


class Tfra(Variable):
    """The table of tensorflow-recommenders-addons."""

    def __init__(self, rows: int, dim: int) -> None:
        from tensorflow_recommenders_addons import dynamic_embedding

        self._layer = dynamic_embedding.keras.layers.Embedding(
            dim, initializer=tf.keras.initializers.RandomNormal(), devices=["/CPU:0"], init_capacity=2 * rows
        )
        self._table = self._layer.params
        self._optimizer = dynamic_embedding.DynamicEmbeddingOptimizer(tf.keras.optimizers.legacy.Adagrad(0.01))
        for first in range(0, rows, FILL):
            keys = self.keys(np.arange(first, min(rows, first + FILL)))
            self._table.upsert(tf.constant(keys), tf.ones([len(keys), dim]))

    def keys(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the keys of row numbers."""
        return scattered(numbers)

    def look_up(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns rows in evaluation."""
        return self._table.lookup(keys)

    def look_up_in_training(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns rows in training."""
        return self._layer(keys)

    def variables(self) -> list[object]:
        """Returns the objects that an optimizer trains."""
        return self._layer.trainable_variables


KINDS = {"variable": Variable, "dynamic": Dynamic, "tfra": Tfra}


def call_of(table: Variable, law: str, what: str, rows: int, dim: int) -> Call:
    """Returns a call that runs all batches."""
    given = [tf.constant(table.keys(numbers)) for numbers in batches(law, rows)]
    gradients = tf.constant(np.random.default_rng(2).standard_normal((IDS, dim), dtype=np.float32))

    def train(keys: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = table.look_up_in_training(keys)
        table.apply(tape.gradient(rows, table.variables(), output_gradients=gradients))
        return rows

    @tf.function
    def run() -> tf.Tensor:
        element = tf.constant(0.0)
        for keys in given:
            with tf.control_dependencies([element]):
                element = (train if what == "train" else table.look_up)(tf.identity(keys))[0, 0]
        return element

    return lambda: run().numpy()


def in_turns(calls: list[Call], seconds: float) -> list[list[float]]:
    """Returns the times of each call, in seconds; all together take about `seconds`."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 4:
        for call, taken in zip(calls, times, strict=True):
            call()
            for _ in range(2):
                start = time.perf_counter()
                call()
                taken.append(time.perf_counter() - start)
    return times


def serve(kinds: list[str], rows: int, dim: int, seconds: float) -> None:
    """Makes the tables. For each input line, a distribution and a call, prints the times of each kind as JSON."""
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    tables = {kind: KINDS[kind](rows, dim) for kind in kinds}
    last, calls = "", []
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        if line != last:
            last, calls = line, [call_of(table, *line.split(), rows, dim) for table in tables.values()]
        print(json.dumps(dict(zip(kinds, in_turns(calls, seconds / TURNS), strict=True))), flush=True)


class Process:
    """A process that runs `serve`. As a context, it ends with the block, or after the deadline."""

    def __init__(self, python: str, kinds: list[str], rows: int, dim: int, seconds: float) -> None:
        from lockstep.launch.placement.worker_environment import KEEP_MEMORY  # missing in TFRA's environment

        environment = os.environ if kinds == ["tfra"] else {**os.environ, **KEEP_MEMORY}
        command = [python, __file__, "--rows", str(rows), "--dims", str(dim), "--seconds", str(seconds)]
        self._process = subprocess.Popen(
            [*command, "--kinds", *kinds], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._deadline = threading.Timer(DEADLINE, self._process.kill)

    def __enter__(self) -> Process:
        self._deadline.start()
        self._answer()
        return self

    def __exit__(self, *error: object) -> None:
        self._deadline.cancel()
        self._process.kill()
        self._process.wait()

    def measure(self, law: str, what: str) -> dict[str, list[float]]:
        """Returns the times of calls, in seconds, by kind."""
        print(law, what, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, list[float]]:
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries print as well
                return json.loads(line)
        raise RuntimeError(f"{self._process.args} ended")


def compare(processes: list[Process], law: str, what: str) -> dict[str, list[float]]:
    """Returns the times of calls, in seconds, by kind, from processes that take turns."""
    times: dict[str, list[float]] = {}
    for _ in range(TURNS):
        for process in processes:
            for kind, taken in process.measure(law, what).items():
                times.setdefault(kind, []).extend(taken)
    return times


def main() -> None:
    """Prints a line for each number of rows, dimension, distribution and call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds per line and process")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument(
        "--tfra", default=_PEER if os.path.exists(_PEER) else None, help="the Python of an environment with TFRA"
    )
    parser.add_argument("--json", help="also write the median rates there, in million keys per second")
    parser.add_argument("--kinds", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kinds:
        serve(args.kinds, args.rows[0], args.dims[0], args.seconds)
        return
    print(f"million keys/s, {IDS} keys a call, {THREADS} threads")
    head = f"{'rows':>9} {'dim':>4} {'':16} {'variable':>9} {'dynamic':>9} {'ratio':>6} {'best':>6}"
    print(head + ("      TFRA  ratio" if args.tfra else ""))
    measured = []
    for rows in args.rows:
        for dim in args.dims:
            with contextlib.ExitStack() as stack:
                pythons = [(sys.executable, ["variable", "dynamic"]), (args.tfra, ["tfra"])]
                processes = [
                    stack.enter_context(Process(python, kinds, rows, dim, args.seconds))
                    for python, kinds in pythons
                    if python
                ]
                for law in LAWS:
                    for what in ("lookup", "train"):
                        times = compare(processes, law, what)
                        rates = {kind: IDS * BATCHES / statistics.median(taken) / 1e6 for kind, taken in times.items()}
                        measured.append({"rows": rows, "dim": dim, "law": law, "what": what, "rates": rates})
                        _print(f"{rows:>9} {dim:>4} {law + ' ' + what:16}", rates, times)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(measured, file)


def _print(head: str, rates: dict[str, float], times: dict[str, list[float]]) -> None:
    dynamic, best = rates["dynamic"], IDS * BATCHES / min(times["dynamic"]) / 1e6
    line = f"{head} {rates['variable']:9.1f} {dynamic:9.1f} {dynamic / rates['variable']:6.2f} {best:6.1f}"
    if "tfra" in rates:
        line += f" {rates['tfra']:9.1f} {dynamic / rates['tfra']:6.1f}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
