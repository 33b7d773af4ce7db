"""Operations that TensorFlow 1.15 had for CPUs only. They are TensorFlow's own."""

from typing import Any

import tensorflow as tf

__all__ = ["unique", "unsorted_segment_sum"]


def unique(x: Any, out_idx: Any = tf.int32, name: str | None = None) -> Any:
    """Returns (y, idx): the distinct values of `x`, [n], by their first place, and the place in y of each."""
    return tf.unique(x, out_idx=out_idx, name=name)


def unsorted_segment_sum(data: Any, segment_ids: Any, num_segments: Any, name: str | None = None) -> tf.Tensor:
    """Returns the sums [num_segments, ...] of the rows of `data`, [n, ...], with the same number in `segment_ids`."""
    return tf.math.unsorted_segment_sum(data, segment_ids, num_segments, name=name)
