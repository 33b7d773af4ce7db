"""Small helpers under Horovod's names."""

import tensorflow as tf

# A `tf.function` need not look for Python's control flow in these functions: that takes it a second.
without_autograph = tf.autograph.experimental.do_not_convert


def _executing_eagerly() -> bool:
    """Returns whether operations run as they are called."""
    return tf.executing_eagerly()
