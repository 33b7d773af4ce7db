"""One worker of deltas_test.py: trains a model and saves an increment in each step, or computes what exports serve."""

from __future__ import annotations

import os
import shutil
import time

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from lockstep._src.saving.chain import Chain
from lockstep._src.saving.incremental import IncrementalSaver
from lockstep._src.tables import dynamic

DIM, ROWS = 4, 301
# The ids of the requests: [batch, ids]; known ones, and some that never occur.
REQUESTS = np.random.default_rng(0).integers(-20, ROWS + 20, [4, 64])


def score(ids):
    """Returns the scores, [L], of ids, [L] int64, from tables that lose keys, a sharded table and dense weights."""
    option = dynamic.EmbeddingVariableOption(evict_option=dynamic.GlobalStepEvict(3))
    users = dynamic.get_embedding_variable("users", DIM, ev_option=option)
    words = dynamic.get_embedding_variable("words", DIM, key_dtype=tf.string, ev_option=option)
    with hb.embedding_scope():
        items = tf.get_variable("items", [ROWS, DIM])
    within = tf.clip_by_value(ids, 0, ROWS - 1)
    rows = [(users, ids), (words, tf.as_string(ids)), (items, within)]
    weights = tf.get_variable("weights", [3 * DIM, 1])
    bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer())
    return tf.matmul(tf.concat([tf.nn.embedding_lookup(*one) for one in rows], 1), weights)[:, 0] + bias


def signature():
    """Builds the model for an export and returns its signature."""
    ids = tf.placeholder(tf.int64, [None], name="ids")
    return tf.saved_model.predict_signature_def({"ids": ids}, {"score": score(ids)})


def trained():
    """Returns a placeholder for ids, and the training step on them."""
    ids = tf.placeholder(tf.int64, [None])
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_sum(tf.square(score(ids) - tf.sin(tf.cast(ids, tf.float32))))
    return ids, tf.train.AdagradOptimizer(0.05).minimize(loss, global_step=step)


def train(folder, steps, done, wait_s):
    """Trains `steps` steps, with an increment after each, and waits for the file `done`, so that its chain stays."""
    tf.disable_v2_behavior()
    tf.enable_resource_variables()
    with tf.Graph().as_default(), hb.scope(seed=3):
        ids, train_op = trained()
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder,
            save_checkpoint_steps=10_000,
            save_incremental_checkpoint_steps=1,
            save_summaries_steps=None,
        ) as session:
            for i in range(steps):
                session.run(train_op, {ids: np.random.default_rng([i, hb.context.rank]).zipf(1.3, 40).clip(1, ROWS)})
            deadline = time.monotonic() + wait_s
            while not os.path.exists(done):
                assert time.monotonic() < deadline, f"no {done} after {wait_s} s"
                time.sleep(0.05)


def full_exports(folder, scratch):
    """Returns the scores of all requests, [batches][ids], of a full export after each increment, the first after none.

    Each increment's state is restored, and saved as a full checkpoint, which is exported.
    """
    tf.disable_v2_behavior()
    tf.enable_resource_variables()
    shutil.copytree(folder, f"{scratch}/job")
    whole = Chain.read(f"{scratch}/job")
    found = []
    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        trained()
        full = tf.train.Saver()
        saver = IncrementalSaver(full)
        for count in range(len(whole.increments) + 1):
            Chain(whole.base, whole.increments[:count]).write(f"{scratch}/job")
            saver.restore(session, f"{scratch}/job/{whole.base}")
            path = full.save(session, f"{scratch}/full/model.ckpt", global_step=count)
            directory = hb.train.export(f"{scratch}/exports", path, signature)
            found.append(served(directory))
            shutil.rmtree(directory)
    return found


def served(directory):
    """Returns the scores of all requests by an export in stock TensorFlow."""
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.load(session, ["serve"], directory).signature_def["serving_default"]
        ids, scores = loaded.inputs["ids"].name, loaded.outputs["score"].name
        return [session.run(scores, {ids: batch}).tolist() for batch in REQUESTS]
