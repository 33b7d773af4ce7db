"""Gradients that are tensors or `tf.IndexedSlices`: their values, and sums by row."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def values_of(gradient: Any) -> tf.Tensor:
    """Returns the values of slices; a tensor is returned as is."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def with_values(gradient: Any, values: tf.Tensor) -> Any:
    """Returns a gradient of the same kind, and for the same rows, with other values."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return values


def summed_by_row(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns one slice for each row: the sum of the row's slices."""
    rows, position = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, position, tf.size(rows))
    return tf.IndexedSlices(values, rows, slices.dense_shape)
