"""The two ranking models as TF1-style graph code, the same for one plain process and for a distributed job.

Letters in shapes: B batch, F features, D embedding width. Embedding tables are made inside `embedding_scope`:
`contextlib.nullcontext` in a plain process, `hb.embedding_scope` in a distributed one. Nothing else differs.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from schema import Schema

tf1 = tf.compat.v1

EmbeddingScope = Callable[[], contextlib.AbstractContextManager]
Features = dict[str, "tf.Tensor | tf.SparseTensor | tf.RaggedTensor"]


def _seed(name: str) -> int:
    """Returns a seed that depends only on the variable's name, not on the order in which variables are made."""
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


def table(name: str, rows: int, dim: int, scope: EmbeddingScope, limit: float = 0.1) -> tf.Variable:
    """Returns an embedding table [rows, dim], uniform in [-limit, limit)."""
    initializer = tf1.random_uniform_initializer(-limit, limit, seed=_seed(name))
    with scope():
        return tf1.get_variable(name, [rows, dim], tf.float32, initializer)


def _embed(name: str, features: Features, schema: Schema, dim: int, scope: EmbeddingScope, prefix: str) -> tf.Tensor:
    """Returns a feature's vectors [B, dim]: its id's row, or the mean of its list's rows (zeros for an empty list)."""
    if name in schema.categorical:
        rows = table(f"{prefix}_{name}", schema.categorical[name], dim, scope)
        return tf.nn.embedding_lookup(rows, features[name])
    rows = table(f"{prefix}_{name}", schema.lists[name], dim, scope)
    ids = features[name]
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_sparse()
    vectors = tf.nn.safe_embedding_lookup_sparse(rows, ids, combiner="mean")
    return tf.reshape(vectors, [-1, dim])


def _dense(x: tf.Tensor, units: int, name: str, relu: bool) -> tf.Tensor:
    """Returns the output [B, units] of a fully connected layer with input [B, n]."""
    with tf1.variable_scope(name, reuse=tf1.AUTO_REUSE):
        full_name = f"{tf1.get_variable_scope().name}/kernel"
        kernel = tf1.get_variable(
            "kernel", [x.shape[-1], units], tf.float32, tf1.glorot_uniform_initializer(seed=_seed(full_name))
        )
        bias = tf1.get_variable("bias", [units], tf.float32, tf1.zeros_initializer())
    y = tf.nn.bias_add(tf.matmul(x, kernel), bias)
    return tf.nn.relu(y) if relu else y


def mlp(x: tf.Tensor, widths: Sequence[int], name: str, last_relu: bool) -> tf.Tensor:
    """Returns the output of fully connected layers with ReLU between them, and after the last one if asked."""
    for i, units in enumerate(widths):
        x = _dense(x, units, f"{name}_{i}", relu=last_relu or i + 1 < len(widths))
    return x


def numeric(features: Features, schema: Schema) -> tf.Tensor:
    """Returns the numeric features side by side: [B, number of numeric features]."""
    return tf.stack([features[name] for name in schema.numeric], axis=1)


def _pairs(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the dot products of each two of F vectors [B, D]: [B, F (F - 1) / 2]."""
    count = len(vectors)
    stacked = tf.stack(vectors, axis=1)
    products = tf.reshape(tf.matmul(stacked, stacked, transpose_b=True), [-1, count * count])
    row, column = np.tril_indices(count, -1)
    # Whole rows of the transposed matrix are copied, which is several times faster than picking columns.
    picked = tf.gather(tf.transpose(products), (row * count + column).astype(np.int32))
    return tf.transpose(picked)


def dlrm(
    features: Features,
    schema: Schema,
    dim: int = 16,
    embedding_scope: EmbeddingScope = contextlib.nullcontext,
    bottom: Sequence[int] = (512, 256),
    top: Sequence[int] = (512, 256),
) -> tf.Tensor:
    """Returns the logits of the deep learning recommendation model (Naumov et al. 2019, arXiv:1906.00091).

    A bottom MLP turns the numeric features into one vector of the embeddings' width. The top MLP takes this vector and
    the dot products of all vectors.

    Args:
      features: for each name of the schema: numeric [B] float32, categorical [B] int64, lists sparse or ragged [B, L].
      schema: names of the features, and rows of their tables.
      dim: width D of the embeddings.
      embedding_scope: context in which embedding tables are made.
      bottom: widths of the hidden layers below the interaction.
      top: widths of the hidden layers above it.

    Returns:
      Logits [B].
    """
    with tf1.variable_scope("dlrm", reuse=tf1.AUTO_REUSE):
        names = (*schema.categorical, *schema.lists)
        vectors = [_embed(name, features, schema, dim, embedding_scope, "embedding") for name in names]
        return dlrm_dense_part(numeric(features, schema), vectors, bottom, top)


def dlrm_dense_part(
    numbers: tf.Tensor,
    vectors: Sequence[tf.Tensor],
    bottom: Sequence[int] = (512, 256),
    top: Sequence[int] = (512, 256),
) -> tf.Tensor:
    """Returns DLRM's logits [B] from its numeric features [B, n] and the vectors of the others, each [B, D]."""
    dense = mlp(numbers, (*bottom, int(vectors[0].shape[1])), "bottom", last_relu=True)
    top_input = tf.concat([dense, _pairs([dense, *vectors])], axis=1)
    return tf.reshape(mlp(top_input, (*top, 1), "top", last_relu=False), [-1])


def wide_and_deep(
    features: Features,
    schema: Schema,
    dim: int = 16,
    embedding_scope: EmbeddingScope = contextlib.nullcontext,
    hidden: Sequence[int] = (256, 128),
) -> tf.Tensor:
    """Returns the logits of a wide and deep model (Cheng et al. 2016, arXiv:1606.07792).

    It is a linear model plus an MLP over embeddings.

    Arguments and result are as for `dlrm`; `hidden` gives the widths of the deep part.
    """
    with tf1.variable_scope("wide_and_deep", reuse=tf1.AUTO_REUSE):
        names = (*schema.categorical, *schema.lists)
        numbers = numeric(features, schema)
        wide = [_embed(name, features, schema, 1, embedding_scope, "wide") for name in names]
        deep = [_embed(name, features, schema, dim, embedding_scope, "deep") for name in names]
        linear = _dense(numbers, 1, "wide_numeric", relu=False)
        nonlinear = mlp(tf.concat([numbers, *deep], axis=1), (*hidden, 1), "deep_layer", last_relu=False)
        return tf.reshape(tf.add_n([linear, nonlinear, *wide]), [-1])


MODELS: dict[str, Callable[..., tf.Tensor]] = {"dlrm": dlrm, "wide_and_deep": wide_and_deep}


def mean_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of the labels (0 or 1) [B], averaged over the batch."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(labels, tf.float32), logits=logits))


OPTIMIZERS: dict[str, Callable[[float], tf1.train.Optimizer]] = {
    "sgd": tf1.train.GradientDescentOptimizer,
    "momentum": lambda rate: tf1.train.MomentumOptimizer(rate, 0.9),
    # With TensorFlow's default accumulator of 0.1, rare rows would hardly change.
    "adagrad": lambda rate: tf1.train.AdagradOptimizer(rate, initial_accumulator_value=1e-4),
    "adam": tf1.train.AdamOptimizer,
    "ftrl": tf1.train.FtrlOptimizer,
    "rmsprop": tf1.train.RMSPropOptimizer,
}
