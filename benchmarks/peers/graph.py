"""The workloads as graphs of TensorFlow 1, for all systems on TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

import initial
from inputs import placeholders
from models import EmbeddingScope, Features, dlrm, dlrm_dense_part, mean_loss, mlp, numeric, table
from process import Program
from reader import Columns
from schema import LABEL, Schema
from workloads import ACCUMULATOR, HIDDEN, LEARNING_RATE, Workload

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Graph:
    """A training graph.

    Attributes:
      loss: the mean loss of a batch, a scalar.
      scores: probabilities [B].
      feeds: the placeholder of each column.
    """

    loss: tf.Tensor
    scores: tf.Tensor
    feeds: dict[str, tf.Tensor]

    def program(self, session: tf1.Session, train_op: tf.Operation) -> Program:
        """Returns the program that runs this graph in a session."""
        inputs = list(self.feeds.values())
        train = session.make_callable([self.loss, train_op], inputs)
        score = session.make_callable(self.scores, inputs)
        return Program(self.prepare, lambda batch: train(*batch)[0], lambda batch: score(*batch))

    def prepare(self, columns: Columns) -> list[np.ndarray]:
        """Returns the arrays of a batch in the order of the placeholders."""
        return [columns[name] for name in self.feeds]


def config(threads: int) -> tf1.ConfigProto:
    """Returns the settings of a session with so many threads, as all systems on TensorFlow have them."""
    return tf1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)


def optimizer() -> tf1.train.Optimizer:
    """Returns the optimizer of all workloads."""
    return tf1.train.AdagradOptimizer(LEARNING_RATE, initial_accumulator_value=ACCUMULATOR)


def from_numpy(getter: Callable, name: str, *args: object, **options: object) -> tf.Variable:
    """Makes a variable with the value of initial.py for its name: a `custom_getter` of a variable scope."""

    def initializer(shape: Sequence[int], dtype: tf.DType = tf.float32, **_: object) -> tf.Tensor:
        made = tf.numpy_function(lambda: initial.value(name, tuple(map(int, shape))), [], dtype)
        made.set_shape(shape)
        return made

    return getter(name, *args, **{**options, "initializer": initializer})


def sum_of_rows(table: tf.Variable, ids: tf.RaggedTensor) -> tf.Tensor:
    """Returns the sums of the rows of each example's ids [B, L]: [B, D]."""
    return tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")


def build(
    workload: Workload,
    schema: Schema,
    embedding_scope: EmbeddingScope = contextlib.nullcontext,
    *,
    tables: bool = True,
    getter: Callable = from_numpy,
    lookup: Callable[[tf.Variable, tf.RaggedTensor], tf.Tensor] = sum_of_rows,
) -> Graph:
    """Builds the forward pass of a workload.

    Args:
      workload: model and width.
      schema: the features of the data.
      embedding_scope: context in which embedding tables are made.
      tables: if false, the vectors of features are constants, and the graph has only the dense part of DLRM.
      getter: the `custom_getter` that makes the variables.
      lookup: adds the rows of each example's ids, for several ids of a feature.
    """
    features, feeds = placeholders(schema)
    with tf1.variable_scope(tf1.get_variable_scope(), custom_getter=getter):
        if workload.model == "multi_hot":
            logits = multi_hot(features, schema, workload.dim, embedding_scope, lookup)
        elif tables:
            logits = dlrm(features, schema, workload.dim, embedding_scope)
        else:
            numbers = numeric(features, schema)
            vectors = [tf.zeros([tf.shape(numbers)[0], workload.dim]) + 1e-6 * numbers[:, :1]] * len(schema.categorical)
            with tf1.variable_scope("dlrm"):
                logits = dlrm_dense_part(numbers, vectors)
    return Graph(mean_loss(logits, feeds[LABEL]), tf.sigmoid(logits), feeds)


def multi_hot(
    features: Features,
    schema: Schema,
    dim: int,
    embedding_scope: EmbeddingScope,
    lookup: Callable[[tf.Variable, tf.RaggedTensor], tf.Tensor],
) -> tf.Tensor:
    """Returns the logits [B] of the multi-hot model: sums of rows and numeric features, and a hidden layer."""
    with tf1.variable_scope("multi_hot", reuse=tf1.AUTO_REUSE):
        tables = [table(f"embedding_{name}", rows, dim, embedding_scope) for name, rows in schema.lists.items()]
        sums = [lookup(rows, features[name]) for rows, name in zip(tables, schema.lists, strict=True)]
        values = tf.concat([numeric(features, schema), *sums], axis=1)
        return tf.reshape(mlp(values, (HIDDEN, 1), "top", last_relu=False), [-1])
