"""The model of this example: the chance that a user clicks an item, from tables for numbers and for words."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

import lockstep

ITEMS, DIM = 1000, 8


def logits(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """Returns the logits, [B], of users (strings, [B]) and items (numbers below `ITEMS`, [B])."""
    # Users who were not seen for 200 steps lose their row.
    option = lockstep.embedding.EmbeddingVariableOption(evict_option=lockstep.embedding.GlobalStepEvict(200))
    users = lockstep.embedding.get_embedding_variable("users", DIM, key_dtype=tf.string, ev_option=option)
    with lockstep.embedding_scope():
        items = tf.get_variable("items", [ITEMS, DIM])
    rows = tf.concat([tf.nn.embedding_lookup(users, user), tf.nn.embedding_lookup(items, item)], 1)
    weights = tf.get_variable("weights", [2 * DIM, 1])
    bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer())
    return tf.matmul(rows, weights)[:, 0] + bias


def signature() -> object:
    """Builds the model for serving and returns its signature."""
    user = tf.placeholder(tf.string, [None], name="user")
    item = tf.placeholder(tf.int64, [None], name="item")
    return tf.saved_model.predict_signature_def({"user": user, "item": item}, {"score": tf.sigmoid(logits(user, item))})


def clicks(step: int, rank: int, batch: int = 256) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns generated users, items and labels, [batch] each. New users come all the time, and old ones go."""
    rng = np.random.default_rng([step, rank])
    user = step // 10 + rng.zipf(1.3, batch).clip(1, 2000)
    item = rng.integers(0, ITEMS, batch)
    label = (user + item) % 7 < 3
    return user.astype("U").astype(object), item, label.astype(np.float32)
