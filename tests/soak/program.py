"""A worker of a job that is killed and continues: trains a model with everything that a checkpoint must hold.

    python -m hybridbackend.run -n 2 --restarts 3 python -m tests.soak.program FOLDER --steps 200

The model has a sharded table; dynamic tables with every rule of admission and eviction, 16-bit rows and strings; batch
statistics, slots of two optimizers, dropout; data that is shuffled and read ahead. The folder receives checkpoints, and
from each worker `batches.<rank>` with a line for each step: its number and a summary of its batch. With `--weigh N` it
also receives `memory.<rank>` with a line for each N steps: the steps of the worker's life, its own memory and its
dynamic tables' memory, in bytes.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import os
import re
import signal
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from lockstep import embedding
from tests.soak import jobs

ROWS, FILES, BATCH = 6000, 3, 32
ITEMS, USERS, DIM = 499, 3000, 8
FAR_AHEAD = 1000


def make_data(folder: Path) -> None:
    """Writes Parquet files, the same in every run."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    rng = np.random.default_rng(5)
    for i in range(FILES):
        rows = ROWS // FILES
        columns = {
            "label": rng.random(rows).astype(np.float32),
            "price": rng.normal(size=rows).astype(np.float32),
            "item": rng.zipf(1.3, rows).clip(1, ITEMS) - 1,
            "user": rng.zipf(1.1, rows).clip(1, USERS),
        }
        pq.write_table(pa.table(columns), folder / f"{i}.parquet", row_group_size=700)


def _tables() -> dict[str, dict]:
    """Returns the arguments of the dynamic tables."""
    few = {"evict_keys_per_step": 50}
    twice, lfu = embedding.CounterFilter(2), embedding.CacheStrategy.LFU
    options = {
        "counted": {"filter_option": twice, "record_version": True},
        "bloom": {"filter_option": embedding.CBFFilter(2, max_element_size=4000, false_positive_probability=0.01)},
        "short": {"evict_option": embedding.GlobalStepEvict(20), "filter_option": twice, **few},
        "recent": {"evict_option": embedding.BudgetEvict(max_keys=300), **few},
        "frequent": {"evict_option": embedding.BudgetEvict(max_keys=300, cache_strategy=lfu), **few},
        "rounded": {},
        "words": {"evict_option": embedding.GlobalStepEvict(20), "filter_option": twice, **few},
    }
    arguments = {
        name: {"ev_option": embedding.EmbeddingVariableOption(record_frequency=True, **option)}
        for name, option in options.items()
    }
    arguments["rounded"]["value_dtype"] = tf.bfloat16
    arguments["words"]["key_dtype"] = tf.string
    return arguments


def _batches(data: Path) -> dict[str, tf.Tensor]:
    """Returns this worker's next batch: its share of the rows, shuffled differently in each pass, two batches ahead."""
    table = hb.data.Dataset.from_parquet(f"{data}/*.parquet", fields=["label", "price", "item", "user"])
    dataset = table.shuffle_batch(BATCH, buffer_size=500, seed=11).shuffle(4, seed=12).repeat().prefetch(2)
    return tf.data.make_one_shot_iterator(dataset).get_next()


def _logits(batch: dict[str, tf.Tensor], step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the logit of each row, and the bytes of all dynamic tables."""
    rows, sizes = [], []
    for name, arguments in _tables().items():
        keys = tf.as_string(batch["user"]) if name == "words" else batch["user"]
        table = embedding.get_embedding_variable(name, DIM, **arguments)
        rows.append(tf.cast(tf.nn.embedding_lookup(table, keys), tf.float32))
        sizes.append(table.memory_bytes())
    with hb.embedding_scope():
        static = tf.get_variable("static", [ITEMS, DIM], initializer=tf.random_normal_initializer(seed=1))
    rows.append(tf.nn.embedding_lookup(static, batch["item"]))
    hidden = tf.concat([*rows, batch["price"][:, tf.newaxis]], 1)
    mean, variance = tf.nn.moments(hidden, [0])
    moving = tf.get_variable("moving_mean", mean.shape, initializer=tf.zeros_initializer(), trainable=False)
    with tf.control_dependencies([moving.assign(0.9 * moving + 0.1 * mean)]):
        hidden = (hidden - mean) * tf.math.rsqrt(variance + 1e-3)
    for i, width in enumerate((16, 1)):
        # Worker and step determine the draw, so that a repeated step is the same.
        hidden = tf.nn.experimental.stateless_dropout(hidden, 0.1, seed=tf.stack([2 * hb.context.rank + i, step]))
        shape = [hidden.shape[1], width]
        kernel = tf.get_variable(f"kernel_{i}", shape, initializer=tf.random_normal_initializer(stddev=0.2, seed=i))
        hidden = tf.nn.tanh(hidden @ kernel) if i == 0 else hidden @ kernel
    return hidden[:, 0], tf.add_n(sizes)


def _own_memory() -> int:
    """Returns the bytes of this process's anonymous memory that are in use."""
    # TensorFlow's Saver looks for each checkpoint's files by a pattern; Python keeps 32768 compiled patterns.
    fnmatch._compile_pattern.cache_clear()
    re.purge()
    # malloc's free memory does not count either. It keeps one or two of TensorFlow's buffers for checkpoints, 8 MiB
    # each, as one arena or another has room.
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        name, value = line.split(":")
        if name == "RssAnon":
            return int(value.split()[0]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def _die(who: str) -> None:
    """Kills this worker if it is the victim; or all workers; or (on worker 0) the launcher."""
    rank = hb.context.rank
    if who == "launcher" and rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)
        # The workers end soon. They make no further step until then, however fast they are.
        time.sleep(600)
    if who in ("all", str(rank)):
        os.kill(os.getpid(), signal.SIGKILL)


def _wait(flags: argparse.Namespace, step: int) -> None:
    """Slows down while this run is far ahead of the run beside it."""
    if flags.beside is not None and hb.context.rank == 0 and step - jobs.last_step(flags.beside) > FAR_AHEAD:
        time.sleep(0.2)


def _last_step(flags: argparse.Namespace) -> int:
    """Returns the last step; a file has it if it is not known at the beginning."""
    if flags.until is None or not flags.until.exists():
        return flags.steps
    return int(flags.until.read_text())


def train(flags: argparse.Namespace) -> None:
    """Trains from the folder's last checkpoint on."""
    rank = hb.context.rank
    dies = os.environ.get("LOCKSTEP_RESTART", "0") == "0" and flags.die is not None
    increments = {"save_incremental_checkpoint_steps": flags.increments} if flags.increments else {}
    with tf.Graph().as_default(), hb.scope(seed=7):
        batch = _batches(flags.data)
        step = tf.train.get_or_create_global_step()
        now = tf.cast(step.read_value(), tf.int32)
        logits, tables_bytes = _logits(batch, now)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=batch["label"], logits=logits))
        dense = [v for v in tf.trainable_variables() if v.name.startswith("kernel")]
        tables = [v for v in tf.trainable_variables() if not v.name.startswith("kernel")]
        # One optimizer after the other: the second one ends the step.
        dense_step = tf.train.AdamOptimizer(0.01).minimize(loss, var_list=dense)
        with tf.control_dependencies([dense_step]):
            train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step, var_list=tables)
        with (
            open(flags.folder / f"batches.{rank}", "a") as log,
            open(flags.folder / f"memory.{rank}", "a") as memory,
            tf.train.MonitoredTrainingSession(
                checkpoint_dir=str(flags.folder / "checkpoints"),
                save_checkpoint_steps=flags.every,
                save_summaries_steps=None,
                log_step_count_steps=None,
                **increments,
            ) as session,
        ):
            begin = done = int(session.run(step))
            print(f"begin {done}", file=log, flush=True)
            while done < _last_step(flags) and not session.should_stop():
                _, *ids = session.run([train_op, batch["user"], batch["item"], batch["label"]])
                done += 1
                print(done, zlib.crc32(b"".join(part.tobytes() for part in ids)), file=log, flush=True)
                if flags.weigh and (done - begin) % flags.weigh == 0:
                    print(done - begin, _own_memory(), session.run(tables_bytes), file=memory, flush=True)
                _wait(flags, done)
                if dies and done == int(flags.die[1]):
                    _die(flags.die[0])


def main() -> None:
    """Runs one worker of the job."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("folder", type=Path, help="the output folder")
    flags.add_argument("--data", type=Path, required=True, help="the result of make_data")
    flags.add_argument("--steps", type=int, default=sys.maxsize, help="the last step, counted from the first start")
    flags.add_argument("--until", type=Path, help="a file that will have the last step")
    flags.add_argument("--beside", type=Path, help="folder of another run; this run is never far ahead of it")
    flags.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    flags.add_argument("--increments", type=int, help="steps between incremental checkpoints")
    flags.add_argument("--weigh", type=int, help="steps between measurements of the memory")
    flags.add_argument(
        "--die", nargs=2, help="the victim (a rank, all, launcher), and the step after which it is killed, once"
    )
    given = flags.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.WARN)
    train(given)


if __name__ == "__main__":
    main()
