"""Graph-mode iterators by functions, as HybridBackend's programs make them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lockstep._src.data import sync


def make_one_shot_iterator(ds: tf.data.Dataset) -> Any:
    """An iterator that needs no initialization; in a scope it ends on all workers together.

    Args:
      ds: a dataset; it may hold no tables or variables.
    """
    with tf.device("/cpu:0"):
        return tf.compat.v1.data.make_one_shot_iterator(ds)


def make_initializable_iterator(ds: tf.data.Dataset) -> Any:
    """An iterator whose `initializer` must be run first; in a scope it ends on all workers together."""
    with tf.device("/cpu:0"):
        return tf.compat.v1.data.make_initializable_iterator(ds)


def make_iterator(ds: tf.data.Dataset) -> Any:
    """A one-shot iterator for training, which ends on all workers together, in a scope or not."""
    with tf.device("/cpu:0"):
        return sync.over_dataset(tf.compat.v1.data.make_one_shot_iterator, ds)
