"""Small helpers under Horovod's names."""

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Whether operations run as they are called."""
    return tf.executing_eagerly()
