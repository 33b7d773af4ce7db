"""The time of a training step against the number of rows of its table, on two workers that this program starts.

Usage: python benchmarks/train/vocabulary.py [--rows 100000 1000000 10000000 100000000] [--dim 16] [--ids 16384].

Workload: a step of a worker looks up `ids` ids of one table, all different, drawn evenly from all rows, and trains the
rows with Adagrad on the sum of their squares. So every step moves the same bytes between the workers and changes the
same number of rows, regardless of the table's size.

| column | is |
| --- | --- |
| step | the median over the blocks of a block's mean time of a step, on worker 0 |
| gather | the time that numpy takes to read the same number of random rows of an array as large as a worker's rows |
| huge | the same with the array in huge pages of 2 MiB |

What grows in `gather` is the machine's: rows of a small table are in the processor's caches, rows of a large one in
memory, and in pages whose addresses are in no cache either. A step reads and writes such rows of the table and of the
slot.
"""

from __future__ import annotations

import argparse

import turns

WORKERS = 2
WARM_UP, BLOCKS, STEPS, BATCHES = 3, 9, 20, 20


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rows", type=int, nargs="+", default=[10**5, 10**6, 10**7, 10**8], help="(%(default)s)")
    flags.add_argument("--dim", type=int, default=16, help="width of the table (%(default)s)")
    flags.add_argument("--ids", type=int, default=16384, help="ids of a worker's step (%(default)s)")
    flags.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    flags.add_argument("--vocabulary", type=int, default=0, help=argparse.SUPPRESS)
    return flags.parse_args()


# The worker.


def batches(flags: argparse.Namespace, rank: int, rows: int):
    """Returns ids, [BATCHES, ids]; the ids of a batch are all different."""
    import numpy as np

    random = np.random.default_rng(rank)
    # Twice as many ids are drawn, since some of them are equal.
    drawn = [np.unique(random.integers(0, rows, 2 * flags.ids)) for _ in range(BATCHES)]
    return np.stack([random.permutation(ids)[: flags.ids] for ids in drawn])


def gather_ms(flags: argparse.Namespace, rank: int, rows: int, *, huge: bool) -> float:
    """Returns the milliseconds of a read of random rows by numpy."""
    import mmap

    import numpy as np

    memory = mmap.mmap(-1, rows * flags.dim * 4)
    if huge:
        memory.madvise(mmap.MADV_HUGEPAGE)
    table = np.frombuffer(memory, np.float32).reshape(rows, flags.dim)
    table.fill(0.1)
    ids = batches(flags, rank, rows)
    gather = {"": lambda number: table.take(ids[number % BATCHES], axis=0)}
    return turns.measure(gather, WARM_UP, BLOCKS, STEPS)[""]


def worker(flags: argparse.Namespace) -> None:
    """Runs steps on a table of one size; worker 0 prints the figures."""
    import tensorflow as tf

    import hybridbackend.tensorflow as hb

    tf1 = tf.compat.v1
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    rank, rows = hb.context.rank, flags.vocabulary
    turns.pin(rank, WORKERS)
    own = rows // WORKERS
    figures = {name: gather_ms(flags, rank, own, huge=name == "huge") for name in ("gather", "huge")}
    with tf.Graph().as_default(), hb.scope():
        with hb.embedding_scope():
            table = tf1.get_variable("table", [rows, flags.dim], initializer=tf1.random_uniform_initializer(seed=1))
        ids = tf1.placeholder(tf.int64, [flags.ids])
        found = tf.nn.embedding_lookup(table, ids)
        train_op = tf1.train.AdagradOptimizer(0.01).minimize(tf.reduce_sum(tf.square(found)))
        with tf1.Session(config=tf1.ConfigProto(intra_op_parallelism_threads=1)) as session:
            session.run(tf1.global_variables_initializer())
            drawn = batches(flags, rank, rows)
            step = {"step": lambda number: session.run(train_op, {ids: drawn[number % BATCHES]})}
            figures |= turns.measure(step, WARM_UP, BLOCKS, STEPS)
    if rank == 0:
        turns.report(figures)


def main() -> None:
    flags = flags_from()
    if flags.worker:
        worker(flags)
        return
    print(f"{flags.ids} distinct ids x {flags.dim} per worker, Adagrad, {WORKERS} workers", flush=True)
    print("     rows  share MiB  step ms  gather ms  huge ms", flush=True)
    for rows in flags.rows:
        flags.vocabulary = rows
        f = turns.launch(__file__, flags, ["vocabulary", "dim", "ids"], WORKERS)
        share = 2 * rows // WORKERS * flags.dim * 4 >> 20
        print(f"{rows:9}{share:11}{f['step']:9.2f}{f['gather']:11.3f}{f['huge']:9.3f}", flush=True)


if __name__ == "__main__":
    main()
