"""The process of crash_moments_test.py: makes others that save checkpoint after checkpoint, and kills them."""

import os
import random
import signal
import time
import traceback

import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from lockstep._src import embedding
from lockstep._src.saving import tables

KEYS, DIM = 3000, 4


def build():
    """A dynamic table, a replicated variable, a step that adds 1 to all of both, and a saver."""
    table = embedding.get_embedding_variable("keys", DIM, initializer=tf.zeros_initializer())
    dense = tf.get_variable("dense", [KEYS], initializer=tf.zeros_initializer(), use_resource=True)
    rows = tf.nn.embedding_lookup(table, tf.range(KEYS, dtype=tf.int64))
    optimizer = tf.train.MomentumOptimizer(-1.0, 0.0)  # its slot is the gradient: 1
    step = optimizer.minimize(tf.reduce_sum(rows) + tf.reduce_sum(dense), var_list=[table, dense])
    return table, dense, step, tf.train.Saver(max_to_keep=3)


def _save_for_ever(folder, report):
    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        _, _, step, saver = build()
        session.run(tf.global_variables_initializer())
        for i in range(1, 10_000):
            session.run(step)
            started = time.monotonic()
            saver.save(session, f"{folder}/model.ckpt", i)
            if i == 1:
                os.write(report, f"{time.monotonic() - started}\n".encode())


def work(folder, moments, seed):
    """Kills `moments` processes, each after a time that the seed gives; they save to `folder`/0, `folder`/1, ..."""
    tf.disable_v2_behavior()
    tables.PART_ROWS = 16
    rng = random.Random(seed)
    for moment in range(moments):
        os.makedirs(f"{folder}/{moment}")
        heard, report = os.pipe()
        # This process has no graph and no session, and so no threads of TensorFlow's.
        pid = os.fork()
        if pid == 0:
            try:
                _save_for_ever(f"{folder}/{moment}", report)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(report)
        with os.fdopen(heard) as reports:
            time.sleep(2 * rng.random() * float(reports.readline()))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, status
    return moments
