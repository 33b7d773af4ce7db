"""A small recommender that a job and a plain TensorFlow program build from the same code, and its data."""

from __future__ import annotations

import contextlib

import numpy as np
import tensorflow.compat.v1 as tf

ROWS = {"user": 37, "item": 101, "tag": 3}
DIM = 8
GLOBAL_BATCH = 24
STEPS = 20
OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.5),
    "momentum": lambda: tf.train.MomentumOptimizer(0.2, 0.9),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.3),
    "adam": lambda: tf.train.AdamOptimizer(0.02),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.3, l1_regularization_strength=0.001, l2_regularization_strength=0.001),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5),
}


def batch(step: int) -> dict[str, np.ndarray]:
    """Returns the global batch of a step: ids of users and items [B], tags [B, 4] (-1 is none), labels [B]."""
    rng = np.random.RandomState(1000 + step)
    return {
        "user": rng.randint(0, ROWS["user"], GLOBAL_BATCH).astype(np.int64),
        # There are few distinct items, so several workers look up a row several times per step.
        "item": rng.zipf(1.3, GLOBAL_BATCH).clip(1, ROWS["item"]).astype(np.int32) - 1,
        "tag": rng.randint(-1, ROWS["tag"], [GLOBAL_BATCH, 4]).astype(np.int64),
        "label": rng.randint(0, 2, GLOBAL_BATCH).astype(np.float32),
    }


def initial(name: str, shape: tuple[int, ...]) -> tf.Tensor:
    seed = sum(map(ord, name))
    return tf.constant_initializer(np.random.RandomState(seed).uniform(-0.3, 0.3, shape).astype(np.float32))


def variable(name: str, shape: tuple[int, ...]) -> tf.Variable:
    return tf.get_variable(name, shape, tf.float32, initializer=initial(name, shape))


def loss(features: dict[str, tf.Tensor], embedding_scope=contextlib.nullcontext) -> tf.Tensor:
    """Returns the mean loss of a batch.

    Args:
      features: the results of `batch`, any number of rows.
      embedding_scope: the context in which the tables are made.
    """
    with embedding_scope():
        tables = {name: variable(f"{name}_table", (rows, DIM)) for name, rows in ROWS.items()}
    sparse_tags = tf.sparse.from_dense(features["tag"] + 1)
    sparse_tags = tf.SparseTensor(sparse_tags.indices, sparse_tags.values - 1, sparse_tags.dense_shape)
    x = tf.concat(
        [
            tf.nn.embedding_lookup(tables["user"], features["user"]),
            tf.gather(tables["item"], features["item"]),
            tf.nn.safe_embedding_lookup_sparse(tables["tag"], sparse_tags, combiner="mean"),
        ],
        axis=1,
    )
    hidden = tf.nn.relu(tf.matmul(x, variable("hidden", (3 * DIM, 16))) + variable("hidden_bias", (16,)))
    logits = tf.reshape(tf.matmul(hidden, variable("out", (16, 1))), [-1])
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=features["label"], logits=logits))


def held(variable: tf.Variable) -> tf.Tensor:
    """Returns the values that this worker holds: of a sharded variable and its slots, its own rows."""
    if hasattr(variable, "handle"):
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    return variable.read_value()


def assembled(results: list[dict[str, np.ndarray]], key: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the logical tensor of a variable: one worker's, if all hold it, or all workers' rows, interleaved."""
    parts = [r[key] for r in results]
    if parts[0].shape == shape:
        for part in parts[1:]:
            np.testing.assert_array_equal(part, parts[0], err_msg=f"{key} differs between workers")
        return parts[0]
    whole = np.full(shape, np.nan, parts[0].dtype)
    for rank, part in enumerate(parts):
        whole[rank :: len(parts)] = part
    return whole


def placeholders() -> dict[str, tf.Tensor]:
    return {k: tf.placeholder(v.dtype, [None, *v.shape[1:]], k) for k, v in batch(0).items()}
