"""Checks of numbers in steps."""

from __future__ import annotations

import contextlib

import tensorflow as tf


def at_most(value: tf.Tensor, most: int, message: str) -> contextlib.AbstractContextManager[None]:
    """Checks a number, and returns a context for operations that must follow the check.

    Args:
      value: the number, an integer scalar.
      most: the largest number that is accepted.
      message: the error's message, which the number follows.

    Raises:
      tf.errors.InvalidArgumentError: the number is larger; in a graph when the operations run.
    """
    if not tf.executing_eagerly():
        # `tf.debugging.Assert` would make a conditional of it.
        return tf.control_dependencies([tf.raw_ops.Assert(condition=value <= most, data=[message, value])])
    if int(value) > most:
        raise tf.errors.InvalidArgumentError(None, None, f"{message} {int(value)}")
    return contextlib.nullcontext()
