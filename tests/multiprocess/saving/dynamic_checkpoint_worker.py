"""One worker of dynamic_checkpoint_test.py: trains a model with dynamic tables and saves it, or restores it."""

import os
import shutil

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from lockstep._src.engine import background
from lockstep._src.saving import table_saveables as saved_tables
from lockstep._src.tables import dynamic

DIM = 4
TABLES = {
    "plain": {},
    "counted": {"filter_option": dynamic.CounterFilter(3)},
    "bloom": {"filter_option": dynamic.CBFFilter(3, max_element_size=2000, false_positive_probability=0.001)},
    "short": {"evict_option": dynamic.GlobalStepEvict(2)},
    "words": {"filter_option": dynamic.CounterFilter(2)},
}


def batch(step: int, rank: int) -> np.ndarray:
    """Returns the ids of a worker in a step: [3, 40], some of which are frequent."""
    rng = np.random.default_rng([step, rank])
    return rng.zipf(1.3, [3, 40]).clip(1, 500) - 100


def keys_of(name, ids):
    """Returns ids as keys of a table."""
    return tf.as_string(ids) if name == "words" else ids


def build():
    """Returns the tables, a placeholder for ids, and a training step on them."""
    ids = tf.placeholder(tf.int64, [None, None])
    loss = 0.0
    tables = {}
    for name, options in TABLES.items():
        option = dynamic.EmbeddingVariableOption(record_frequency=True, record_version=True, **options)
        key_dtype = tf.string if name == "words" else tf.int64
        tables[name] = dynamic.get_embedding_variable(name, DIM, key_dtype=key_dtype, ev_option=option)
        loss += tf.reduce_sum(tf.square(tf.nn.embedding_lookup(tables[name], keys_of(name, ids)) - 0.5))
    with hb.embedding_scope():
        static = tf.get_variable("static", [601, DIM])
    loss += tf.reduce_sum(tf.square(tf.nn.embedding_lookup(static, ids + 100)))
    step = tf.train.get_or_create_global_step()
    return tables, static, ids, loss, tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)


def slots():
    """Returns the names of the slots that the optimizer of the present graph asks for."""
    updates = [op for op in tf.get_default_graph().get_operations() if op.type == "LockstepSparseUpdate"]
    return sorted({name.decode() for op in updates for name in op.get_attr("slot_names")})


def held(tables):
    """Returns tensors of this worker's parts of the tables."""
    names = slots()
    return {
        name: [*table.export(), *table.export_slots(*names), table.candidate_count()] for name, table in tables.items()
    }


def lists(values):
    """Returns the results of `held` as Python's numbers."""
    return {name: [np.asarray(part).tolist() for part in parts] for name, parts in values.items()}


def work(folder, steps, part_rows=5, **arguments):
    """Trains from the checkpoint in `folder` to step `steps`, and saves. Returns the worker's values before and after.

    Other arguments are the session's.
    """
    tf.disable_v2_behavior()
    saved_tables.PART_ROWS = part_rows
    with tf.Graph().as_default(), hb.scope(seed=3):
        tables, static, ids, loss, train_op = build()
        tensors, step = held(tables), tf.train.get_global_step()
        ids_seen = tf.range(-100, 401, dtype=tf.int64)
        rows = {n: tf.nn.embedding_lookup(t, keys_of(n, ids_seen)) for n, t in evaluated(tables)}
        rows["static"] = tf.nn.embedding_lookup(static, ids_seen + 100)
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder, save_summaries_steps=None, **{"save_checkpoint_steps": max(steps, 1), **arguments}
        ) as session:
            before = lists(session.run(tensors)) if session.run(step) else None
            for i in range(session.run(step), steps):
                session.run(train_op, {ids: batch(i, hb.context.rank)})
            after = lists(session.run(tensors))
            seen = {name: value.tolist() for name, value in session.run(rows).items()}
    return before, after, seen


def first(folder, steps):
    """Saves and restores tables without keys, in `<folder>-empty`; then does `work`."""
    tf.disable_v2_behavior()
    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        table = dynamic.get_embedding_variable("plain", DIM)
        words = dynamic.get_embedding_variable("words", DIM, key_dtype=tf.string)
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        path = saver.save(session, f"{folder}-empty/model.ckpt")
        session.run(table.insert(tf.constant([1, 2, 3], tf.int64), tf.zeros([3, DIM])))
        saver.restore(session, path)
        assert session.run([table.total_count(), words.total_count()]) == [0, 0]
    return work(folder, steps)


def killed(folder, steps):
    """Trains to step `steps`, and saves increments. Keeps a copy of the folder from before the session's end."""
    kept = f"{folder}-killed"

    class Killed(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            # The hook that saves runs before this one, and no worker continues without this worker.
            at = run_context.session.run(tf.train.get_global_step())
            if at == steps and hb.context.rank == 0 and not os.path.exists(kept):
                background.finish()
                shutil.copytree(folder, kept)

    return work(folder, steps, 5, save_incremental_checkpoint_steps=1, save_checkpoint_steps=100, hooks=[Killed()])


def resumed(folder, steps):
    """Does `work` in a folder with increments."""
    return work(folder, steps, 5, save_incremental_checkpoint_steps=1)


def begun(folder):
    """Returns the worker's values if all variables and tables begin with the values of the checkpoint in `folder`."""
    tf.disable_v2_behavior()
    with tf.Graph().as_default(), hb.scope(seed=3):
        tables, static, *_ = build()
        tensors = held(tables)
        rows = tf.nn.embedding_lookup(static, tf.range(501))
        tf.train.init_from_checkpoint(folder, {"/": "/"})
        with tf.train.MonitoredTrainingSession() as session:
            return lists(session.run(tensors)), session.run(rows).tolist()


def evaluated(tables):
    """Returns the tables for lookups that leave no trace."""
    for name, table in tables.items():
        with dynamic.evaluating():
            yield name, table
