"""Lookups in many sharded tables and in one table with the same ids, on two workers that this program starts.

Usage: python benchmarks/train/tables.py [--tables 26] [--dim 16] [--batch 4096] [--launches 3].

Workload: a step looks up an id of each of `tables` features for each example of a global batch and trains the rows with
gradient descent on the mean of their squares. Ids are drawn by zipf(1.05) from 100,000 rows per feature.

- `many`: Each feature has its own table.
- `one`: All features share a table of `tables` times the rows; feature i begins at row i * 100,000. These are the same
  ids and rows in one lookup.
- `apart`: As `many`, but each lookup has its own exchanges (`group_lookups=False`).

One program builds all of them, and its workers run them in turns, in blocks of steps. Each worker has one thread, on
its share of the cores. The time of a step is the median over the blocks of a block's mean, on worker 0. `exchanges`
counts the exchanges of ids, rows and gradients in the executed graph. Target: many at most 1.3 times one.
"""

from __future__ import annotations

import argparse
import collections
import statistics

import turns

WORKERS, ROWS = 2, 100_000
WARM_UP, BLOCKS, STEPS = 5, 9, 10
TARGET = 1.3
KINDS = ("LockstepRoute", "LockstepCombine", "LockstepCombineGradient")


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--tables", type=int, default=26, help="(%(default)s)")
    flags.add_argument("--dim", type=int, default=16, help="width of the tables (%(default)s)")
    flags.add_argument("--batch", type=int, default=4096, help="examples of all workers together (%(default)s)")
    flags.add_argument("--launches", type=int, default=3, help="runs of the whole program (%(default)s)")
    flags.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return flags.parse_args()


# The worker.


def worker(flags: argparse.Namespace) -> None:
    """Builds the programs and runs them in turns; worker 0 prints the figures."""
    import numpy as np
    import tensorflow as tf

    import hybridbackend.tensorflow as hb

    tf1 = tf.compat.v1
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    rank = hb.context.rank
    turns.pin(rank, WORKERS)
    weights = np.arange(1, ROWS + 1) ** -1.05
    random = np.random.default_rng(rank)
    shape = [STEPS, flags.batch // WORKERS, flags.tables]
    ids = random.choice(ROWS, shape, p=weights / weights.sum()).astype(np.int64)
    steps = {
        name: program(flags, ids, many=name != "one", grouped=name != "apart") for name in ("many", "one", "apart")
    }
    times = turns.measure({name: step for name, (step, _) in steps.items()}, WARM_UP, BLOCKS, STEPS)
    if rank == 0:
        turns.report({name: {"ms": times[name], "exchanges": steps[name][1]} for name in steps})


def program(flags: argparse.Namespace, ids, many: bool, grouped: bool):
    """Returns a function of the batch's number that runs a step, and the counts of its exchanges by kind."""
    import numpy as np
    import tensorflow as tf

    import hybridbackend.tensorflow as hb

    tf1 = tf.compat.v1
    with tf.Graph().as_default(), hb.scope(group_lookups=grouped):
        batches = tf1.get_variable("batches", initializer=ids, trainable=False, collections=["batches"])
        number = tf1.placeholder(tf.int32, [])
        batch = tf.gather(batches, number)
        count, rows = (flags.tables, ROWS) if many else (1, flags.tables * ROWS)
        with hb.embedding_scope():
            start = tf1.constant_initializer(0.01)
            tables = [tf1.get_variable(f"table{i}", [rows, flags.dim], initializer=start) for i in range(count)]
        if many:
            found = [tf.nn.embedding_lookup(table, batch[:, i]) for i, table in enumerate(tables)]
        else:
            found = [tf.nn.embedding_lookup(tables[0], batch + np.arange(flags.tables) * ROWS)]
        loss = tf.add_n([tf.reduce_sum(tf.square(rows)) for rows in found]) / flags.batch
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        session = tf1.Session(config=tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1))
        session.run([tf1.global_variables_initializer(), batches.initializer])
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(output_partition_graphs=True)
        session.run(train_op, {number: 0}, options, metadata)
        nodes = collections.Counter(node.op for graph in metadata.partition_graphs for node in graph.node)
        step = session.make_callable(train_op, [number])
        return step, [nodes[kind] for kind in KINDS]


# The parent.


def main() -> None:
    flags = flags_from()
    if flags.worker:
        worker(flags)
        return
    print(f"{flags.tables} tables of width {flags.dim}, {WORKERS} workers, global batch {flags.batch}", flush=True)
    runs = [turns.launch(__file__, flags, ("tables", "dim", "batch"), WORKERS) for _ in range(flags.launches)]
    print(f"{'':8}{'step ms':>9}{'lowest':>9}{'highest':>9}{'x one':>7}{'exchanges':>14}")
    median = {name: statistics.median(run[name]["ms"] for run in runs) for name in runs[0]}
    for name, value in median.items():
        every = [run[name]["ms"] for run in runs]
        exchanges = "+".join(map(str, runs[0][name]["exchanges"]))
        ratio = statistics.median(run[name]["ms"] / run["one"]["ms"] for run in runs)
        print(f"{name:8}{value:9.2f}{min(every):9.2f}{max(every):9.2f}{ratio:7.2f}{exchanges:>14}")
    ratio = statistics.median(run["many"]["ms"] / run["one"]["ms"] for run in runs)
    met = ratio <= TARGET and runs[0]["many"]["exchanges"] == [1, 1, 1]
    print(f"many / one: {ratio:.2f} (target <= {TARGET}){'' if met else '  MISSED'}")


if __name__ == "__main__":
    main()
