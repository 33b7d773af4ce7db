"""What is written alike eagerly, in a `tf.function` and in a graph of TensorFlow 1."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def local_variable(name: str, shape: Any, dtype: tf.DType) -> tf.Variable:
    """Zeros that no checkpoint holds, which may be made in a function; in a graph one of its local variables."""
    with tf.init_scope():
        zeros = tf.zeros(shape, dtype)
        if tf.executing_eagerly():
            return tf.Variable(zeros, trainable=False, name=name)
        collections = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
        return tf.compat.v1.Variable(zeros, trainable=False, name=name, collections=collections, use_resource=True)


def after(done: Sequence[Any]) -> Any:
    """Inside, operations run after these; eagerly they have."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    elements = [getattr(element, "op", element) for element in done]
    return tf.control_dependencies([e for e in elements if isinstance(e, tf.Operation)])
