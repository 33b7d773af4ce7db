"""Steps while a checkpoint is written, on two workers that this program starts.

Usage: python benchmarks/train/saves.py [--rows 10000000] [--dim 32] [--ids 16384] [--steps 1000] [--dense 0].

Workload: a step of a worker looks up `ids` ids of one table, drawn evenly from all rows. Eight of them are an example
of a network of 512 and 256 units. Adagrad trains all of it. The network has `dense` MB of other weights in 4 variables,
which each step changes. The session saves when it starts, after `steps` steps, and when it ends, after twice as many.
The second save is measured. The checkpoint has the table and its slot, 8 * rows * dim bytes, and the dense weights.

Three jobs train the same way, one after another.

| job | is |
| --- | --- |
| none | saves nothing |
| beside | saves while it trains: background_saves=True, the default |
| waits | waits for its saves: background_saves=False |

Worker 0 prints of each, in milliseconds:

| column | is |
| --- | --- |
| median | the median step |
| begins | the step after which the save begins, and this start |
| while | the median of the steps that end while the checkpoint is written |
| longest | the longest of these; of `none`, of all steps but the first ten |
| over 3x | how many of these took longer than three medians of `none` |
| save s | seconds from the start of the save until its checkpoint is complete |

It ends with an error if the final weights of the three jobs differ in a bit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
import zlib

import turns

WORKERS, PER_EXAMPLE = 2, 8
JOBS = ("none", "beside", "waits")


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rows", type=int, default=10**7, help="rows of the table (%(default)s)")
    flags.add_argument("--dim", type=int, default=32, help="width of the table (%(default)s)")
    flags.add_argument("--ids", type=int, default=16384, help="ids of a worker's step (%(default)s)")
    flags.add_argument("--steps", type=int, default=1000, help="steps between saves (%(default)s)")
    flags.add_argument("--dense", type=int, default=0, help="MB of other weights (%(default)s)")
    flags.add_argument("--folder", default=tempfile.gettempdir(), help="where checkpoints are written (%(default)s)")
    flags.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    flags.add_argument("--job", default="", help=argparse.SUPPRESS)
    return flags.parse_args()


# The worker.


def model(flags: argparse.Namespace, rank: int):
    """Returns the step, and the variables."""
    import tensorflow as tf

    import hybridbackend.tensorflow as hb

    tf1 = tf.compat.v1
    with hb.embedding_scope():
        table = tf1.get_variable(
            "table", [flags.rows, flags.dim], initializer=tf1.random_uniform_initializer(-0.05, 0.05, seed=1)
        )
    counter = tf1.train.get_or_create_global_step()
    ids = tf.random.stateless_uniform([flags.ids], [rank, counter], 0, flags.rows, tf.int64)
    layer = tf.reshape(tf.nn.embedding_lookup(table, ids), [flags.ids // PER_EXAMPLE, PER_EXAMPLE * flags.dim])
    dense = []
    for i, (inputs, units) in enumerate([(PER_EXAMPLE * flags.dim, 512), (512, 256), (256, 1)]):
        dense.append(tf1.get_variable(f"w{i}", [inputs, units], initializer=tf1.glorot_uniform_initializer(seed=i)))
        layer = layer @ dense[-1] if units == 1 else tf.nn.relu(layer @ dense[-1])
    loss = tf.reduce_mean(tf.square(layer - 1))
    others = []
    for i in range(4 if flags.dense else 0):
        start = tf1.random_uniform_initializer(seed=i)
        others.append(tf1.get_variable(f"other{i}", [flags.dense * 10**6 // 16], initializer=start))
    steps = [tf1.train.AdagradOptimizer(0.01).minimize(loss, counter, [table, *dense])]
    if others:
        total = tf.add_n([tf.reduce_sum(weights * 0.5) for weights in others])
        steps.append(tf1.train.GradientDescentOptimizer(0.01).minimize(total, var_list=others))
    return tf.group(*steps), [table, *dense, *others]


def worker(flags: argparse.Namespace) -> None:
    """Runs the steps of a job; worker 0 prints the figures."""
    import numpy as np
    import tensorflow as tf

    import hybridbackend.tensorflow as hb

    tf1 = tf.compat.v1
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    rank, saves_at = hb.context.rank, flags.steps
    folder = os.path.join(flags.folder, f"saves-{flags.job}")
    turns.pin(rank, WORKERS)
    ends, weights = [0.0], []

    class FinalWeights(tf1.train.SessionRunHook):
        """Keeps a checksum of each variable: of a table, of this worker's rows."""

        def end(self, session):
            weights.extend(zlib.crc32(value) for value in session.run(values))

    with tf.Graph().as_default(), hb.scope(background_saves=flags.job == "beside"):
        step, variables = model(flags, rank)
        values = [tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=v.dtype) for v in variables]
        session = tf1.train.MonitoredTrainingSession(
            checkpoint_dir=None if flags.job == "none" else folder,
            save_checkpoint_steps=saves_at if flags.job != "none" else None,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
            hooks=[tf1.train.StopAtStepHook(last_step=saves_at * 2), FinalWeights()],
            config=tf1.ConfigProto(intra_op_parallelism_threads=1),
        )
        with session:
            ends[0] = time.time()
            while not session.should_stop():
                session.run(step)
                ends.append(time.time())
    if rank != 0:
        return
    times = np.diff(ends) * 1e3
    first, last = 10, len(times)
    figures = {"median": float(np.median(times[first:])), "begins": float(times[saves_at - 1])}
    if flags.job != "none":
        complete = os.path.getmtime(f"{folder}/model.ckpt-{saves_at}.index")
        begin = ends[saves_at - 1]
        first, last = saves_at - 1, int(np.searchsorted(ends, complete)) + 1
        figures["save"] = complete - begin
    some = times[first:last]
    figures |= {"while": float(np.median(some)), "longest": float(some.max()), "steps": len(some)}
    figures |= {f"step{i}": float(value) for i, value in enumerate(np.sort(some)[-100:])}
    figures |= {f"weights{i}": value for i, value in enumerate(weights)}
    turns.report(figures)


def main() -> None:
    flags = flags_from()
    if flags.worker:
        worker(flags)
        return
    gigabytes = (8 * flags.rows * flags.dim + flags.dense * 1e6) / 1e9
    print(f"a checkpoint of {gigabytes:.2f} GB, {flags.ids} ids per worker's step, {WORKERS} workers", flush=True)
    print("job      median  begins   while  longest  over 3x  of steps  save s", flush=True)
    of_none = None
    weights = []
    for job in JOBS:
        flags.job = job
        folder = os.path.join(flags.folder, f"saves-{job}")
        try:
            f = turns.launch(__file__, flags, ["job", "rows", "dim", "ids", "steps", "dense", "folder"], WORKERS)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        of_none = of_none or f["median"]
        over = sum(value > 3 * of_none for name, value in f.items() if name.startswith("step") and name != "steps")
        steps = (
            f"{job:7}{f['median']:8.2f}{f['begins']:8.2f}{f['while']:8.2f}{f['longest']:9.2f}{over:9}{f['steps']:10}"
        )
        print(f"{steps}{f.get('save', 0):8.2f}", flush=True)
        weights.append([value for name, value in sorted(f.items()) if name.startswith("weights")])
    if weights.count(weights[0]) != len(weights):
        raise SystemExit("saves: the final weights of the jobs differ")


if __name__ == "__main__":
    main()
