"""Lookups with a combiner: fused, not fused, and plain TensorFlow without communication; on two workers.

Usage: python benchmarks/train/pooled.py [--dim 16] [--hot 10] [--batch 4096] [--rows 200000] [--function sparse]
[--tables sharded] [--launches 3].

Workload: 26 features with Criteo's numbers of rows, at most `--rows`. An example has 1 to 2 * hot - 1 ids of each,
drawn by zipf(1.05); they are summed. A hidden layer of 64 follows, and Adagrad trains everything.

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
import statistics

import turns

WORKERS = 2
WARM_UP, BLOCKS, STEPS = 2, 7, 4
TARGET = 1.5
PASSED = ("dim", "hot", "batch", "rows", "function", "tables")  # flags that workers get
CARDINALITIES = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992]
CARDINALITIES += [5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572]


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--dim", type=int, default=16, help="width of the tables (%(default)s)")
    flags.add_argument("--hot", type=int, default=10, help="mean number of ids of a feature (%(default)s)")
    flags.add_argument("--batch", type=int, default=4096, help="examples of all workers together (%(default)s)")
    flags.add_argument("--rows", type=int, default=200000, help="the most rows of a table (%(default)s)")
    flags.add_argument("--function", choices=["sparse", "safe"], default="sparse", help="the lookup (%(default)s)")
    flags.add_argument("--tables", choices=["sharded", "replicated"], default="sharded", help="(%(default)s)")
    flags.add_argument("--launches", type=int, default=3, help="runs of the whole program (%(default)s)")
    flags.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return flags.parse_args()


def rows_of_tables(flags: argparse.Namespace) -> list[int]:
    return [min(rows, flags.rows) for rows in CARDINALITIES]


def batches(flags: argparse.Namespace, rank: int):
    """Returns for each step the dense values, for each feature its ids and lengths, and the labels."""
    import numpy as np

    random = np.random.default_rng(rank)
    examples = flags.batch // WORKERS
    permutations = np.random.default_rng(99)
    features = []
    for rows in rows_of_tables(flags):
        weights = np.arange(1, rows + 1) ** -1.05
        features.append((np.cumsum(weights) / weights.sum(), permutations.permutation(rows)))
    made = []
    for _ in range(STEPS):
        lengths = random.integers(1, 2 * flags.hot, [len(features), examples])
        ids = []
        for own, (cumulative, permutation) in zip(lengths, features, strict=True):
            ranks = np.searchsorted(cumulative, random.random(own.sum()))
            ids.append(permutation[np.minimum(ranks, len(permutation) - 1)])
        dense = random.standard_normal([examples, 13]).astype(np.float32)
        made.append((dense, ids, lengths, (random.random(examples) < 0.3).astype(np.float32)))
    return made


def worker(flags: argparse.Namespace) -> None:
    """Builds the programs and runs them in turns; worker 0 prints the figures."""
    import tensorflow as tf

    import hybridbackend.tensorflow as hb

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    rank = hb.context.rank
    turns.pin(rank, WORKERS)
    data = batches(flags, rank)
    of_tables = hb.embedding_scope if flags.tables == "sharded" else contextlib.nullcontext
    programs = {
        "fused": program(flags, data, hb.scope(fused_lookups=True), of_tables),
        "apart": program(flags, data, hb.scope(fused_lookups=False), of_tables),
        "plain": program(flags, data, contextlib.nullcontext(), contextlib.nullcontext),
    }
    times = turns.measure(programs, WARM_UP, BLOCKS, STEPS)
    if rank == 0:
        turns.report(times)


def program(flags: argparse.Namespace, data, scope, scope_of_tables):
    """Returns a function of the batch's number that runs a step."""
    import numpy as np
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default(), scope:
        dense = tf1.placeholder(tf.float32, [None, 13])
        ids = [tf1.placeholder(tf.int64, [None]) for _ in CARDINALITIES]
        lengths = [tf1.placeholder(tf.int64, [None]) for _ in CARDINALITIES]
        labels = tf1.placeholder(tf.float32, [None])
        start = tf1.random_uniform_initializer(-0.05, 0.05, seed=1)
        with scope_of_tables():
            tables = [
                tf1.get_variable(f"table{i}", [rows, flags.dim], initializer=start)
                for i, rows in enumerate(rows_of_tables(flags))
            ]
        found = []
        for table, own, length in zip(tables, ids, lengths, strict=True):
            of_examples = tf.RaggedTensor.from_row_lengths(own, length, validate=False)
            if flags.function == "sparse":
                found.append(tf.nn.embedding_lookup_sparse(table, of_examples, None, combiner="sum"))
            else:
                found.append(tf.nn.safe_embedding_lookup_sparse(table, of_examples.to_sparse(), None, combiner="sum"))
        values = tf.concat([dense, *found], 1)
        random = np.random.default_rng(7)
        for inputs, outputs in ((13 + len(tables) * flags.dim, 64), (64, 1)):
            weights = (random.uniform(-1, 1, [inputs, outputs]) * np.sqrt(6 / (inputs + outputs))).astype(np.float32)
            values = tf.nn.relu(values) if inputs == 64 else values
            values = values @ tf1.get_variable(f"kernel{outputs}", initializer=weights)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=tf.reshape(values, [-1])))
        train_op = tf1.train.AdagradOptimizer(0.01).minimize(loss)
        session = tf1.Session(config=tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1))
        session.run(tf1.global_variables_initializer())
        step = session.make_callable([loss, train_op], [dense, *ids, *lengths, labels])

    def run(number: int) -> object:
        own_dense, own_ids, own_lengths, own_labels = data[number]
        return step(own_dense, *own_ids, *own_lengths, own_labels)

    return run


def main() -> None:
    flags = flags_from()
    if flags.worker:
        worker(flags)
        return
    print(
        f"26 features of {flags.hot} ids, width {flags.dim}, {WORKERS} workers, global batch {flags.batch}, "
        f"{flags.tables} tables, {flags.function}",
        flush=True,
    )
    runs = [turns.launch(__file__, flags, PASSED, WORKERS) for _ in range(flags.launches)]
    print(f"{'':8}{'step ms':>9}{'lowest':>9}{'highest':>9}{'samples/s':>11}{'x plain':>9}")
    for name in runs[0]:
        every = [run[name] for run in runs]
        value, ratio = statistics.median(every), statistics.median(run["plain"] / run[name] for run in runs)
        print(f"{name:8}{value:9.2f}{min(every):9.2f}{max(every):9.2f}{flags.batch / value * 1e3:11.0f}{ratio:9.2f}")
    ratio = statistics.median(run["plain"] / run["fused"] for run in runs)
    print(f"fused / plain: {ratio:.2f} (target >= {TARGET}){'' if ratio >= TARGET else '  MISSED'}")


if __name__ == "__main__":
    main()
