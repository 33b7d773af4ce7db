"""A worker of crash_test.py: saves a checkpoint, and is killed while it saves the next."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from lockstep._src.tables import dynamic as embedding
from lockstep.testing.crash_points import crash_at

ROWS, DIM = 1003, 16


class _Death:
    """The death of this process at a stage of a save, once it is armed."""

    def __init__(self, stage):
        is_last, is_first = hb.context.rank == hb.context.world_size - 1, hb.context.rank == 0
        self._point = None
        if stage == "written" and is_last:
            self._point = "save: file written"
        elif stage == "renaming" and is_first:
            self._point = "commit: file renamed"  # the first; the index comes last
        elif stage == "merged" and is_first:
            self._point = "save: all written"

    def arm(self):
        if self._point is not None:
            crash_at(self._point)


def _dynamic_table():
    """Returns a table whose rows begin with 1, and a lookup of all of its keys."""
    table = embedding.get_embedding_variable("dynamic", DIM, initializer=tf.ones_initializer())
    return table, tf.nn.embedding_lookup(table, tf.range(ROWS, dtype=tf.int64))


def work(folder, stage):
    """Saves step 1, in which all values are 1, then step 2. One worker dies in between; the others get an error."""
    tf.disable_v2_behavior()
    os.makedirs(folder, exist_ok=True)
    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        with hb.embedding_scope():
            table = tf.get_variable("table", [ROWS, DIM], initializer=tf.ones_initializer())
        dense = tf.get_variable("dense", [ROWS], initializer=tf.ones_initializer(), use_resource=True)
        dynamic, seen = _dynamic_table()
        add_one = tf.train.GradientDescentOptimizer(-1.0).minimize(tf.reduce_sum(seen), var_list=[dynamic])
        death = _Death(stage)
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        session.run(seen)
        saver.save(session, f"{folder}/model.ckpt", 1)
        session.run([add_one, *(v.assign_add(tf.ones_like(v)) for v in (table, dense))])
        death.arm()
        saver.save(session, f"{folder}/model.ckpt", 2)
        return "saved"


def restored(folder):
    """Returns the values that a worker of a new job restores: of its rows and of the replicated variable, each once."""
    tf.disable_v2_behavior()
    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        with hb.embedding_scope():
            table = tf.get_variable("table", [ROWS, DIM])
        dense = tf.get_variable("dense", [ROWS], use_resource=True)
        rows = tf.nn.embedding_lookup(table, tf.range(ROWS))
        dynamic, seen = _dynamic_table()
        tf.train.Saver().restore(session, tf.train.latest_checkpoint(folder))
        values = session.run([rows, dense, dynamic.export().values])
        # This worker has a part of the dynamic table.
        assert 0 < len(values[2]) < ROWS
        return [np.unique(value).tolist() for value in [*values, session.run(seen)]]
