"""A model of many tables, single-valued and multi-hot with every combiner: in a job, and in plain TensorFlow.

In a job tables are static or dynamic; dynamic tables begin with the same rows as static ones.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
GLOBAL_BATCH, STEPS, MOST_IDS = 24, 8, 5
# Rows and width of each table; two features look up the last one.
TABLES = {"a": (31, 4), "b": (53, 16), "c": (7, 8), "d": (97, 8), "e": (11, 1), "f": (40, 16)}
# Table, type of ids and combiner of each feature; None: one id for each example.
FEATURES = {
    "single": ("a", tf.int64, None),
    "single_int32": ("b", tf.int32, None),
    "sum": ("c", tf.int64, "sum"),
    "mean": ("d", tf.int32, "mean"),
    "sqrtn": ("e", tf.int64, "sqrtn"),
    "weighted_sum": ("f", tf.int64, "sum"),
    "weighted_mean": ("f", tf.int32, "mean"),
    "weighted_sqrtn": ("d", tf.int64, "sqrtn"),
    "safe": ("b", tf.int64, "mean"),
}
OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.5),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.3),
    # With this epsilon, gradients that are only rounding errors stay small.
    "adam": lambda: tf1.train.AdamOptimizer(0.02, epsilon=1e-3),
}


def batch(step: int) -> dict[str, np.ndarray]:
    """Returns the global batch of a step: per feature ids [B] or [B, MOST_IDS] (-1 is none); weights; labels [B]."""
    random = np.random.default_rng(step)
    values = {"label": random.integers(0, 2, GLOBAL_BATCH).astype(np.float32)}
    for name, (table, dtype, combiner) in FEATURES.items():
        shape = [GLOBAL_BATCH] if combiner is None else [GLOBAL_BATCH, MOST_IDS]
        # There are few distinct ids, so several workers look up a row several times per step.
        ids = random.zipf(1.2, shape).clip(1, TABLES[table][0]) - 1
        if combiner is not None:
            ids[random.random(shape) < 0.4] = -1
            # Only the safe lookup accepts examples without ids.
            ids[:, 0] = -1 if name == "safe" else np.abs(ids[:, 0])
        values[name] = ids.astype(dtype.as_numpy_dtype)
    values["weight"] = random.uniform(0.5, 2, [GLOBAL_BATCH, MOST_IDS]).astype(np.float32)
    return values


def initial(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the initial value of a variable."""
    return np.random.default_rng(sum(map(ord, name))).uniform(-0.3, 0.3, shape).astype(np.float32)


def _variable(name: str, shape: tuple[int, ...]) -> tf.Variable:
    return tf1.get_variable(name, initializer=initial(name, shape))


def _dynamic_table(name: str, shape: tuple[int, ...]) -> tf.Variable:
    from lockstep import embedding

    rows, dim = shape
    option = embedding.EmbeddingVariableOption(init_option=embedding.InitializerOption(default_value_dim=rows))

    def begin(shape: Any, dtype: tf.DType = tf.float32, **kwargs: Any) -> tf.Tensor:
        return tf.constant(initial(name, (rows, dim)))

    return embedding.get_embedding_variable(name, dim, initializer=begin, ev_option=option)


def _looked_up(name: str, table: tf.Variable, fed: dict[str, tf.Tensor]) -> tf.Tensor:
    combiner = FEATURES[name][2]
    if combiner is None:
        return tf.nn.embedding_lookup(table, fed[name])
    places = tf.where(fed[name] >= 0)
    shape = tf.shape(fed[name], out_type=tf.int64)
    ids = tf.SparseTensor(places, tf.gather_nd(fed[name], places), shape)
    if name == "safe":
        return tf1.nn.safe_embedding_lookup_sparse(table, ids, combiner=combiner)
    weights = ids.with_values(tf.gather_nd(fed["weight"], places)) if name.startswith("weighted") else None
    return tf1.nn.embedding_lookup_sparse(table, ids, weights, combiner=combiner)


def loss(fed: dict[str, tf.Tensor], embedding_scope=contextlib.nullcontext, make_table=_variable) -> tf.Tensor:
    """Returns the mean loss of a batch with any number of examples."""
    with embedding_scope():
        tables = {name: make_table(f"table_{name}", shape) for name, shape in TABLES.items()}
    found = [_looked_up(name, tables[table], fed) for name, (table, _, _) in FEATURES.items()]
    width = sum(TABLES[table][1] for table, _, _ in FEATURES.values())
    hidden = tf.tanh(tf.matmul(tf.concat(found, 1), _variable("hidden_kernel", (width, 6))))
    logits = tf.matmul(hidden, _variable("out_kernel", (6, 1)))[:, 0]
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=fed["label"], logits=logits))


def train(
    optimizer: str, rank: int, world: int, embedding_scope=contextlib.nullcontext, make_table=_variable
) -> dict[str, Any]:
    """Trains on a worker's part of each batch, in the default graph.

    Returns:
      The worker's values of the variables and slots; of a dynamic table its keys and their rows.
    """
    fed = {name: tf1.placeholder(value.dtype, [None, *value.shape[1:]]) for name, value in batch(0).items()}
    train_op = OPTIMIZERS[optimizer]().minimize(loss(fed, embedding_scope, make_table))
    held = {v.op.name: _value_of(v) for v in tf1.global_variables()}
    share = GLOBAL_BATCH // world
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for step in range(STEPS):
            mine = {fed[name]: v[rank * share : (rank + 1) * share] for name, v in batch(step).items()}
            session.run(train_op, mine)
        return session.run(held)


def _value_of(variable: tf.Variable) -> Any:
    if getattr(variable, "is_dynamic", False):
        return variable.export()[:2]
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def plain(optimizer: str) -> dict[str, np.ndarray]:
    """Returns the final values of plain TensorFlow."""
    with tf.Graph().as_default():
        return train(optimizer, 0, 1)


def work() -> dict[tuple[str, bool], dict[str, Any]]:
    """Returns the final values of this worker of a job, by optimizer and by whether tables are dynamic."""
    import hybridbackend.tensorflow as hb

    results = {}
    for optimizer, dynamic in itertools.product(OPTIMIZERS, (False, True)):
        with tf.Graph().as_default(), hb.scope():
            make_table = _dynamic_table if dynamic else _variable
            place = (hb.context.rank, hb.context.world_size)
            results[optimizer, dynamic] = train(optimizer, *place, hb.embedding_scope, make_table)
    return results
