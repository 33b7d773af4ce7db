"""DLRM and wide-and-deep with batch normalization, shares of data of different lengths, in jobs and plain programs.

Run as a program, it trains as a worker of a job; `plain` trains on the same rows in one process.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

ROWS = {"user": 13, "item": 29}
DIM, BATCH = 4, 6
# The number of rows of each worker, by whether the remainder is dropped.
SHARES = {True: [20, 11, 14], False: [20, 0, 7]}
MODELS = ("dlrm", "wide_and_deep")


def share(rank: int, drop_remainder: bool) -> dict[str, np.ndarray]:
    """Returns a worker's rows."""
    rows = SHARES[drop_remainder][rank]
    rng = np.random.RandomState(50 + rank)
    return {
        "dense": (rng.normal(size=[rows, 3]) * 2 + 1).astype(np.float32),
        "user": rng.randint(0, ROWS["user"], rows),
        "item": rng.randint(0, ROWS["item"], rows),
        "label": rng.randint(0, 2, rows).astype(np.float32),
    }


def _variable(name: str, shape: list[int], **kwargs) -> tf.Variable:
    values = np.random.RandomState(sum(map(ord, name))).uniform(-0.4, 0.4, shape).astype(np.float32)
    return tf.get_variable(name, initializer=kwargs.pop("initializer", values), **kwargs)


def _batch_norm(x: tf.Tensor, name: str) -> tf.Tensor:
    width = x.shape[1]
    with tf.variable_scope(name):
        mean, variance = tf.nn.moments(x, [0])
        for statistic, value, begin in (("moving_mean", mean, 0.0), ("moving_variance", variance, 1.0)):
            average = _variable(statistic, [width], initializer=np.full([width], begin, np.float32), trainable=False)
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_sub(average, (average - value) * 0.1))
        beta, gamma = _variable("beta", [width]), _variable("gamma", [width])
        return tf.nn.batch_normalization(x, mean, variance, beta, 1.0 + gamma, 1e-3)


def _mlp(x: tf.Tensor, widths: list[int], name: str) -> tf.Tensor:
    for i, width in enumerate(widths):
        x = tf.matmul(x, _variable(f"{name}{i}_kernel", [int(x.shape[1]), width]))
        x = tf.nn.relu(_batch_norm(x, f"{name}{i}_norm")) + _variable(f"{name}{i}_bias", [width])
    return x


def _loss(model: str, features: dict[str, tf.Tensor], embedding_scope: Callable) -> tf.Tensor:
    with embedding_scope():
        tables = {name: _variable(f"{name}_table", [rows, DIM]) for name, rows in ROWS.items()}
        wide = _variable("wide_table", [ROWS["item"], 1])
    out = _variable("out_kernel", [5, 1])
    embedded = [tf.nn.embedding_lookup(table, features[name]) for name, table in sorted(tables.items())]
    if model == "dlrm":
        vectors = tf.stack([*embedded, _mlp(features["dense"], [5, DIM], "bottom")], 1)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        pairs = [products[:, i, j] for i, j in itertools.combinations(range(3), 2)]
        logits = tf.matmul(_mlp(tf.stack(pairs, 1), [5], "top"), out)
    else:
        deep = _mlp(tf.concat([*embedded, features["dense"]], 1), [7, 5], "deep")
        logits = tf.matmul(deep, out) + tf.nn.embedding_lookup(wide, features["item"])
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=features["label"], logits=tf.reshape(logits, [-1]))
    # The gradient of the scale is the mean of the losses: NaN without rows.
    return tf.reduce_mean(losses) * tf.exp(_variable("scale", [])) + 0.01 * tf.nn.l2_loss(out)


def build(
    model: str, features: dict[str, tf.Tensor], embedding_scope: Callable = contextlib.nullcontext
) -> tf.Operation:
    """Returns the operation that trains on a batch."""
    loss = _loss(model, features, embedding_scope)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return tf.train.AdagradOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())


def batches(workers: int, drop_remainder: bool) -> list[dict[str, np.ndarray]]:
    """Returns the rows of each step, from all workers."""
    shares = [share(rank, drop_remainder) for rank in range(workers)]
    counts = [-(-SHARES[drop_remainder][rank] // BATCH) for rank in range(workers)]
    steps = min(counts) if drop_remainder else max(counts)
    return [
        {key: np.concatenate([s[key][step * BATCH : (step + 1) * BATCH] for s in shares]) for key in shares[0]}
        for step in range(steps)
    ]


def plain(model: str, workers: int, drop_remainder: bool) -> dict[str, np.ndarray]:
    """Returns the final variables of plain TensorFlow."""
    with tf.Graph().as_default(), tf.Session() as session:
        steps = batches(workers, drop_remainder)
        features = {k: tf.placeholder(v.dtype, [None, *v.shape[1:]]) for k, v in steps[0].items()}
        train_op = build(model, features)
        session.run(tf.global_variables_initializer())
        for step in steps:
            session.run(train_op, {features[k]: v for k, v in step.items()})
        return session.run({v.op.name: v for v in tf.global_variables()})


class _Final(tf.train.SessionRunHook):
    """A hook that records the values of tensors at the end."""

    def __init__(self, values: dict[str, tf.Tensor]) -> None:
        self.values = values

    def end(self, session: tf.Session) -> None:
        self.values = session.run(self.values)


def main(out: str) -> None:
    """Trains as a worker and writes the variables' values: of tables and their slots, this worker's rows."""
    import hybridbackend.tensorflow as hb
    from tests.parity.model import held

    for model, drop_remainder in itertools.product(MODELS, SHARES):
        with tf.Graph().as_default(), hb.scope(data_sync_drop_remainder=drop_remainder):
            mine = tf.data.Dataset.from_tensor_slices(share(hb.context.rank, drop_remainder)).batch(BATCH)
            features = tf.data.make_one_shot_iterator(mine).get_next()
            train_op = build(model, features, hb.embedding_scope)
            final = _Final({v.op.name: held(v) for v in tf.global_variables()})
            with tf.train.MonitoredTrainingSession("", hooks=[final]) as session:
                while not session.should_stop():
                    session.run(train_op)
        np.savez(f"{out}.{model}.{drop_remainder}.{hb.context.rank}.npz", **final.values)


if __name__ == "__main__":
    tf.disable_v2_behavior()
    tf.enable_resource_variables()
    main(sys.argv[1])
