"""Helpers for the batches of an evaluation: their rows, their losses, and the final values of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from lockstep._src.evaluation.counters import combine_counters
from lockstep._src.graph.ancestry import ancestors

_tf1 = tf.compat.v1


def rows_of(*structures: Any) -> tf.Tensor | None:
    """Returns the number of rows of a batch; None if it has no tensor with a first dimension."""
    for leaf in tf.nest.flatten(structures):
        if isinstance(leaf, tf.SparseTensor):
            return leaf.dense_shape[0]
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.nrows()
        if tf.is_tensor(leaf) and leaf.shape.rank:
            return tf.shape(leaf, out_type=tf.int64)[0]
    return None


def loss_or_zero(loss: tf.Tensor, features: Any, labels: Any) -> tf.Tensor:
    """Returns the loss, or 0 for a batch without rows.

    The mean over zero rows is NaN. A worker whose data has ended gets such batches.
    """
    rows = rows_of(features, labels)
    return loss if rows is None else tf.where(rows > 0, loss, tf.zeros_like(loss))


def mean_over_batches(loss: tf.Tensor, features: Any, labels: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a metric (value, update): the mean loss over the batches that have rows."""
    rows = rows_of(features, labels)
    weight = None if rows is None else tf.cast(rows > 0, tf.float32)
    return _tf1.metrics.mean(loss_or_zero(loss, features, labels), weight, name="mean_loss")


class FinalValues(tf.compat.v1.train.SessionRunHook):
    """A hook that reads the values of metrics after the last batch.

    Attributes:
      along: the tensors that are computed from a batch. They must be fetched in the run that takes the batch, because a
        separate run would take another one.
      values: the values of the other tensors, available after the session's end.
    """

    stops_alike = True

    def __init__(self, values: Mapping[str, Any]) -> None:
        tensors = {name: tf.convert_to_tensor(value) for name, value in values.items()}
        self.along = {name: tensor for name, tensor in tensors.items() if takes_data(tensor)}
        self._tensors = {name: tensor for name, tensor in tensors.items() if name not in self.along}
        self._combine = combine_counters(_tf1.get_collection(_tf1.GraphKeys.METRIC_VARIABLES))
        self.values: dict[str, Any] = {}

    def end(self, session: Any) -> None:
        session.run(self._combine)
        self.values = session.run(self._tensors)


def takes_data(tensor: tf.Tensor) -> bool:
    """Returns whether computing the tensor takes an element from an iterator."""
    return any(op.type.startswith("IteratorGetNext") for op in ancestors([tensor]))
