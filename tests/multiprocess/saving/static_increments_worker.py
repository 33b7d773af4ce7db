"""One worker of static_increments_test.py: trains sharded tables and saves increments, or resumes from them."""

import os
import shutil

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from lockstep._src.engine import background
from lockstep._src.saving import shard_saveables

DIM = 4
# Table -> rows. Steps change few rows of `user` and all of `few`; a program assigns rows of `assigned`.
TABLES = {"user": 601, "few": 6, "still": 300, "assigned": 90}


def ids_of(step: int) -> np.ndarray:
    """Returns the ids of a step, [20], the same on all workers."""
    return np.random.default_rng(step).integers(0, TABLES["user"], 20)


class _Copying(tf.train.SessionRunHook):
    """Copies the folder after a step, as if the job had been killed then, and saves a full checkpoint at the end."""

    def __init__(self, folder, last_step):
        self._folder, self._last_step = folder, last_step
        self._saver = tf.train.Saver()

    def after_run(self, run_context, run_values):
        # The hook that saves runs before this one, and no worker continues without this worker.
        killed = f"{self._folder}-killed"
        at = run_context.session.run(tf.train.get_global_step())
        if at == self._last_step and hb.context.rank == 0 and not os.path.exists(killed):
            background.finish()
            shutil.copytree(self._folder, killed)

    def end(self, session):
        self._saver.save(session, f"{self._folder}-end/model.ckpt")


def work(folder: str, steps: int) -> int:
    """Trains from the checkpoint in `folder` to step `steps`, with an increment after each; returns the first step."""
    tf.disable_v2_behavior()
    shard_saveables.PIECE_BYTES = 5 * DIM * 4  # increments of some pieces
    with tf.Graph().as_default(), hb.scope(seed=3):
        with hb.embedding_scope():
            tables = {name: tf.get_variable(name, [rows, DIM]) for name, rows in TABLES.items()}
        ids = tf.placeholder(tf.int64, [None])
        rows = [tf.nn.embedding_lookup(tables[name], ids % TABLES[name]) for name in ("user", "few")]
        rows.append(tf.nn.embedding_lookup(tables["few"], tf.range(TABLES["few"], dtype=tf.int64)))
        loss = sum(tf.reduce_sum(tf.square(each - 0.5)) for each in rows)
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        local = tables["assigned"]
        # The first row of this worker: by an operation of TensorFlow that knows nothing of increments.
        assign = tf.raw_ops.ResourceScatterUpdate(
            resource=local.handle, indices=[0], updates=tf.fill([1, DIM], tf.cast(step, tf.float32))
        )
        hooks = [_Copying(folder, steps)]
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder,
            save_checkpoint_steps=100,
            save_incremental_checkpoint_steps=1,
            save_summaries_steps=None,
            hooks=hooks,
        ) as session:
            begin = session.run(step)
            for i in range(begin, steps):
                session.run(assign)
                session.run(train_op, {ids: ids_of(i)})
    return int(begin)


def ids_of_small(step: int, rows: int) -> np.ndarray:
    """Returns the ids of a step in a small table, [1], the same on all workers."""
    return np.array([step % rows])


def resume(folder: str, tables: dict[str, int], steps: int) -> tuple[int, dict[str, np.ndarray]]:
    """Trains `steps` steps on the last checkpoint in `folder`, with an increment after each.

    Returns:
      The first step, and the tables [rows, DIM] at the end.
    """
    tf.disable_v2_behavior()
    with tf.Graph().as_default(), hb.scope():
        step = tf.train.get_or_create_global_step()
        with hb.embedding_scope():
            found = {
                name: tf.get_variable(name, [rows, DIM], initializer=tf.ones_initializer())
                for name, rows in tables.items()
            }
        ids = {name: tf.placeholder(tf.int64, [None]) for name in tables}
        loss = sum(tf.reduce_sum(tf.square(tf.nn.embedding_lookup(found[name], ids[name]))) for name in tables)
        train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        held = {name: tf.nn.embedding_lookup(found[name], np.arange(rows)) for name, rows in tables.items()}
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder,
            save_checkpoint_steps=None,
            save_checkpoint_secs=None,
            save_incremental_checkpoint_steps=1,
            save_summaries_steps=None,
        ) as session:
            begin = int(session.run(step))
            for i in range(begin, begin + steps):
                session.run(train_op, {ids[name]: ids_of_small(i, rows) for name, rows in tables.items()})
            return begin, session.run(held)
