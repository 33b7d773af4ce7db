"""Batches of an evaluation: their rows, values computed from them, and what metrics have counted at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from lockstep._src.evaluation.counters import combine_counters
from lockstep._src.graph.ancestry import ancestors

_tf1 = tf.compat.v1


def rows_of(*structures: Any) -> tf.Tensor | None:
    """How many rows a batch has; None where it has no tensor with a first dimension."""
    for leaf in tf.nest.flatten(structures):
        if isinstance(leaf, tf.SparseTensor):
            return leaf.dense_shape[0]
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.nrows()
        if tf.is_tensor(leaf) and leaf.shape.rank:
            return tf.shape(leaf, out_type=tf.int64)[0]
    return None


def of_rows(loss: tf.Tensor, features: Any, labels: Any) -> tf.Tensor:
    """The loss, or 0 of a batch without rows, whose mean is NaN: a worker whose data has ended gets such."""
    rows = rows_of(features, labels)
    return loss if rows is None else tf.where(rows > 0, loss, tf.zeros_like(loss))


def mean_over_batches(loss: tf.Tensor, features: Any, labels: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """A metric, (value, update): the mean of the losses of the batches that have rows."""
    rows = rows_of(features, labels)
    weight = None if rows is None else tf.cast(rows > 0, tf.float32)
    return _tf1.metrics.mean(of_rows(loss, features, labels), weight, name="mean_loss")


class FinalValues(_tf1.train.SessionRunHook):
    """Reads the values of metrics when the last batch has been counted.

    Attributes:
      along: those that are computed from a batch; reading them by themselves would take another one.
      values: the others' values, after the end.
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
    """Whether computing the tensor takes an element out of an iterator."""
    return any(op.type.startswith("IteratorGetNext") for op in ancestors([tensor]))
