"""Helpers of SOK that programs use."""

import numpy as np
import tensorflow as tf

__all__ = ["SOK_IndexedSlices", "get_nano_time"]


def SOK_IndexedSlices() -> type[tf.IndexedSlices]:  # noqa: N802
    """Returns the class of slices, `tf.IndexedSlices`."""
    return tf.IndexedSlices


def get_nano_time(datetime_str: str) -> np.uint64:
    """Returns the nanoseconds from 1970 to a time, which is in UTC.

    Args:
      datetime_str: such as "2026-01-31 12:00:00".

    Raises:
      ValueError: the text is not a time.
    """
    return np.datetime64(datetime_str, "ns").astype(np.uint64)
