"""Lookups through SOK's API, and through TensorFlow's in a scope, on two workers that this program starts.

Usage: python benchmarks/train/sok.py [--tables 26] [--dim 16] [--hot 10] [--batch 4096] [--launches 3].

Workload: a step looks up ids of each of `tables` features for each example of a global batch, 1 to 2 * hot - 1 of them.
It adds the rows of an example, and trains the rows by Adagrad on the mean of their squares. Ids are drawn by zipf(1.05)
from 100,000 rows per feature. All programs are graphs of TensorFlow 1.

- `scope`: Tables of `hb.embedding_scope`, looked up by `tf.nn.embedding_lookup_sparse` and trained in `hb.scope`.
- `sok`: The same with `sok.Variable`, `sok.lookup_sparse` and `sok.OptimizerWrapper`, without a scope.
- `localized`: As `sok`, but table i is whole on worker i mod 2.
- `dynamic`: As `sok`, with `sok.DynamicVariable`.

One program builds all of them, and its workers run them in turns, in blocks of steps. Each worker has one thread, on
its share of the cores. The time of a step is the median over the blocks of a block's mean, on worker 0. Target: sok at
most 1.1 times scope.
"""

from __future__ import annotations

import argparse
import statistics

import turns

WORKERS, ROWS = 2, 100_000
WARM_UP, BLOCKS, STEPS = 2, 9, 5
TARGET = 1.1


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--tables", type=int, default=26, help="(%(default)s)")
    flags.add_argument("--dim", type=int, default=16, help="width of the tables (%(default)s)")
    flags.add_argument("--hot", type=int, default=10, help="mean number of ids of a feature (%(default)s)")
    flags.add_argument("--batch", type=int, default=4096, help="examples of all workers together (%(default)s)")
    flags.add_argument("--launches", type=int, default=3, help="runs of the whole program (%(default)s)")
    flags.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return flags.parse_args()


def batches_of(flags: argparse.Namespace, rank: int) -> list[list]:
    """Returns the batches of a worker: the row splits of each feature, then its ids."""
    import numpy as np

    random = np.random.default_rng(rank)
    weights = np.arange(1, ROWS + 1) ** -1.05
    batches = []
    for _ in range(STEPS):
        lengths = random.integers(1, 2 * flags.hot, [flags.tables, flags.batch // WORKERS])
        ids = [random.choice(ROWS, row.sum(), p=weights / weights.sum()).astype(np.int64) for row in lengths]
        batches.append([np.concatenate([[0], np.cumsum(row)]) for row in lengths] + ids)
    return batches


def worker(flags: argparse.Namespace) -> None:
    """Builds the programs and runs them in turns; worker 0 prints the figures."""
    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd
    import hybridbackend.tensorflow as hb
    import sparse_operation_kit as sok

    tf1 = tf.compat.v1
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    hvd.init()
    sok.init()
    turns.pin(hvd.rank(), WORKERS)
    batches = batches_of(flags, hvd.rank())

    def program(made, scope=None):
        """Returns a function of the batch's number that runs a step of the program that `made` builds."""
        with tf.Graph().as_default():
            splits = [tf1.placeholder(tf.int64, [None]) for _ in range(flags.tables)]
            values = [tf1.placeholder(tf.int64, [None]) for _ in range(flags.tables)]
            ids = [tf.RaggedTensor.from_row_splits(*one, validate=False) for one in zip(values, splits, strict=True)]
            train_op = made(ids)
            session = tf1.Session(
                config=tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
            )
            session.run(tf1.global_variables_initializer())
            train = session.make_callable(train_op, [*splits, *values])
        return lambda number: train(*batches[number])

    def loss_of(found):
        return tf.add_n([tf.reduce_sum(rows**2) for rows in found]) / flags.batch

    def value(i):
        return np.random.default_rng(i).normal(size=[ROWS, flags.dim]).astype(np.float32)

    def in_scope(ids):
        with hb.scope(), hb.embedding_scope():
            tables = [tf1.get_variable(f"t{i}", initializer=value(i)) for i in range(flags.tables)]
        with hb.scope():
            found = [tf.nn.embedding_lookup_sparse(*one, None, combiner="sum") for one in zip(tables, ids, strict=True)]
            return tf1.train.AdagradOptimizer(0.01).minimize(loss_of(found) * WORKERS)

    def through_sok(make_table):
        def build(ids):
            tables = [make_table(i) for i in range(flags.tables)]
            loss = loss_of(sok.lookup_sparse(tables, ids, combiners=["sum"] * flags.tables))
            optimizer = sok.OptimizerWrapper(tf1.train.AdagradOptimizer(0.01))
            return optimizer.apply_gradients(zip(tf1.gradients(loss, tables), tables, strict=True))

        return build

    programs = {
        "scope": program(in_scope),
        "sok": program(through_sok(lambda i: sok.Variable(value(i)))),
        "localized": program(through_sok(lambda i: sok.Variable(value(i), mode=f"localized:{i % WORKERS}"))),
        "dynamic": program(through_sok(lambda i: sok.DynamicVariable(flags.dim, "uniform", var_type="hbm"))),
    }
    times = turns.measure(programs, WARM_UP, BLOCKS, STEPS)
    if hvd.rank() == 0:
        turns.report(times)


def main() -> None:
    flags = flags_from()
    if flags.worker:
        worker(flags)
        return
    print(f"{flags.tables} tables of width {flags.dim}, {flags.hot} ids, {WORKERS} workers, global batch {flags.batch}")
    runs = [turns.launch(__file__, flags, ("tables", "dim", "hot", "batch"), WORKERS) for _ in range(flags.launches)]
    print(f"{'':10}{'step ms':>9}{'lowest':>9}{'highest':>9}{'x scope':>9}")
    for name in runs[0]:
        every = [run[name] for run in runs]
        ratio = statistics.median(run[name] / run["scope"] for run in runs)
        print(f"{name:10}{statistics.median(every):9.2f}{min(every):9.2f}{max(every):9.2f}{ratio:9.2f}")
    ratio = statistics.median(run["sok"] / run["scope"] for run in runs)
    print(f"sok / scope: {ratio:.2f} (target <= {TARGET}){'' if ratio <= TARGET else '  MISSED'}")


if __name__ == "__main__":
    main()
