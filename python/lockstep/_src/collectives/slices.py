"""Gradients that are tensors or `tf.IndexedSlices`: their values, and sums by row."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# An attribute of slices that have one slice for each row. Eager tensors do not show it.
_IS_SUMMED = "_lockstep_is_summed"


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


def with_unique_rows(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns slices summed by row; slices that this function has returned are not summed again.

    In a graph, this holds for all slices with the values and indices that `summed_by_row` has returned.
    """
    if getattr(slices, _IS_SUMMED, False) or before_sum(slices.values, slices.indices) is not None:
        return slices
    summed = summed_by_row(slices)
    setattr(summed, _IS_SUMMED, True)
    return summed


def before_sum(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Returns the values and indices of which `summed_by_row` has made these in a graph; None if it has not.

    An update that sums slices of one row by itself takes these. Then the graph does not compute the sums.
    """
    if not (hasattr(values, "graph") and hasattr(indices, "graph")):
        return None
    values, indices = _before_copies(values), _before_copies(indices)
    total, unique = values.op, indices.op
    if total.type != "UnsortedSegmentSum" or unique.type != "Unique" or indices.value_index != 0:
        return None
    position = total.inputs[1]
    if position.op is not unique or position.value_index != 1:
        return None
    return total.inputs[0], unique.inputs[0]


def _before_copies(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type in ("Identity", "IdentityN"):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor
