"""A worker of background_test.py: a session whose checkpoints are written while it trains."""

import itertools
import os
import resource
import signal

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from lockstep._src.engine import background
from lockstep._src.saving import checkpoint, shard_saveables, table_saveables
from lockstep._src.tables import dynamic
from lockstep.testing.crash_points import crash_at

ROWS, DIM, BATCH = 4000, 8, 64
EVERY = 10
# Pieces are so small that a save takes several steps.
PIECE_BYTES, PART_ROWS = 20 * DIM * 4, 20


def model():
    """Returns a step that changes a sharded table, a dynamic one and a replicated one, and all of the variables."""
    table = dynamic.get_embedding_variable("keys", DIM, initializer=tf.zeros_initializer())
    with hb.embedding_scope():
        static = tf.get_variable("static", [ROWS, DIM], initializer=tf.random_normal_initializer(seed=1))
    dense = tf.get_variable("dense", [DIM, 1], initializer=tf.random_normal_initializer(seed=2), use_resource=True)
    numbers = np.random.default_rng(hb.context.rank).zipf(1.2, [200, BATCH]).clip(1, ROWS) - 1
    step = tf.train.get_or_create_global_step()
    ids = tf.gather(tf.constant(numbers, tf.int64), step % len(numbers))
    rows = tf.nn.embedding_lookup(table, ids) + tf.nn.embedding_lookup(static, ids)
    loss = tf.reduce_mean(tf.square(rows @ dense - 1))
    return tf.train.AdagradOptimizer(0.1).minimize(loss, step)


class Alongside(tf.train.SessionRunHook):
    """Counts the steps that begin and end while the same checkpoint is written."""

    def __init__(self):
        self.steps = 0

    def before_run(self, run_context):
        del run_context
        self._work = background._work

    def after_run(self, run_context, run_values):
        del run_context, run_values
        self.steps += self._work is not None and self._work.thread.is_alive()


def _small_pieces():
    shard_saveables.PIECE_BYTES, table_saveables.PART_ROWS = PIECE_BYTES, PART_ROWS


def train(folder, steps, saves_in_background=True, hooks=(), increments=False):
    """Trains for some steps with a checkpoint every EVERY of them; returns the steps that ended beside a save.

    With `increments` the checkpoints are incremental, but for the first and the last.
    """
    tf.disable_v2_behavior()
    _small_pieces()
    alongside = Alongside()
    with tf.Graph().as_default(), hb.scope(background_saves=saves_in_background, keep_checkpoint_max=0):
        op = model()
        session = tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder,
            save_checkpoint_steps=10**6 if increments else EVERY,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            **({"save_incremental_checkpoint_steps": EVERY} if increments else {}),
            hooks=[tf.train.StopAtStepHook(last_step=steps), alongside, *hooks],
        )
        with session:
            while not session.should_stop():
                session.run(op)
    return alongside.steps


def train_and_resume(folder):
    """Trains in two sessions; returns how often each of them took memory for its later saves."""
    calls, take_memory = [], checkpoint.take_memory
    checkpoint.take_memory = lambda *saver: calls.append(take_memory(*saver))
    train(folder, EVERY)
    of_first = len(calls)
    train(folder, 2 * EVERY)
    return of_first, len(calls) - of_first


def end_beside_a_save(folder):
    """Ends the program just after a save has begun, in a session that is never closed."""
    tf.disable_v2_behavior()
    shard_saveables.PIECE_BYTES = 1  # a row at a time, so that the program's end finds the save at work
    with hb.scope():
        op = model()
        saves = {"save_checkpoint_steps": EVERY, "save_checkpoint_secs": None}
        session = tf.train.MonitoredTrainingSession(checkpoint_dir=folder, **saves)
        for _ in range(EVERY):
            session.run(op)
    print("ends beside a save:", background._work is not None)


def contents(prefix):
    """Returns all values of a checkpoint; rows of dynamic tables sorted by key; without the checkpoint's own number."""
    reader = tf.train.load_checkpoint(prefix)
    found = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    order = np.argsort(found["keys-keys"], kind="stable")
    for name in list(found):
        if name == "keys-link" or name.startswith("keys-parts"):
            del found[name]
        elif name in ("keys-keys", "keys-values") or name.startswith("keys/"):
            found[name] = found[name][order]
    return found


def changes(prefix):
    """Returns all values of an increment; rows of tables sorted by id or key; without the increment's own number."""
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    found = {name: reader.get_tensor(name) for name in shapes if "-link" not in name and "-parts" not in name}
    for ids in [name for name in found if name.endswith(("-changed-ids", "-changed-keys"))]:
        table, order = ids.rpartition("-changed-")[0], np.argsort(found[ids], kind="stable")
        for name in found:
            if name.startswith(table) and len(found[name]) == len(order):
                found[name] = found[name][order]
    return found


class Dies(tf.train.SessionRunHook):
    """Ends a rank's process at a moment of the save after a step."""

    def __init__(self, point, passes):
        self._point, self._passes = point, passes

    def begin(self):
        self._step = tf.train.get_global_step()

    def before_run(self, run_context):
        del run_context
        return tf.train.SessionRunArgs(self._step)

    def after_run(self, run_context, run_values):
        del run_context
        if run_values.results == 2 * EVERY - 2:  # the next step saves for the second time
            background.finish()
            crash_at(self._point, self._passes)


def train_and_die(folder, rank, point, passes):
    """Trains until a rank dies in its second save."""
    hooks = [Dies(point, passes)] if hb.context.rank == rank else []
    return train(folder, 4 * EVERY, hooks=hooks)


class FillsTheDisk(tf.train.SessionRunHook):
    """Lets no file of this process become longer than some bytes, from a step on."""

    def begin(self):
        self._steps = itertools.count(1)

    def after_run(self, run_context, run_values):
        del run_context, run_values
        if next(self._steps) == EVERY + 1:
            background.finish()
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))


def train_on_a_full_disk(folder):
    """Trains with a disk that is full on rank 1 when the second checkpoint is written."""
    hooks = [FillsTheDisk()] if hb.context.rank == 1 else []
    train(folder, 10**6, hooks=hooks)


def save_twice_and_restore(folder):
    """Saves by hand beside the session's own saves, and restores; returns what was restored and what was saved."""
    tf.disable_v2_behavior()
    _small_pieces()
    os.makedirs(folder, exist_ok=True)
    with tf.Graph().as_default(), hb.scope():
        op = model()
        own = tf.train.Saver()
        restored = tf.global_variables("dense")
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=f"{folder}/sessions", save_checkpoint_steps=1, save_checkpoint_secs=None
        ) as session:
            raw = session._tf_sess()
            for _ in range(3):
                session.run(op)
            path = own.save(raw, f"{folder}/own", 3)
            assert background._work is None
            before = raw.run(restored)
            session.run(op)
            own.restore(raw, path)
            after = raw.run(restored)
            session.run(op)
    return all(map(np.array_equal, before, after)), tf.train.latest_checkpoint(f"{folder}/sessions")
