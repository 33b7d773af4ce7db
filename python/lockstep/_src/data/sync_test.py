"""What iterators become in a scope, on one worker. Several workers: tests/multiprocess/scope_test.py."""

import pytest
import tensorflow as tf

from lockstep._src.context import context
from lockstep._src.data.sync import SyncIterator

tf1 = tf.compat.v1


def test_an_empty_batch_needs_elements_of_known_rank():
    context.ensure_initialized()
    with tf.Graph().as_default():
        iterator = tf1.data.Iterator.from_structure(tf.float32)
        SyncIterator(iterator, drop_remainder=True).get_next()
        with pytest.raises(ValueError, match="known rank.*output_shapes"):
            SyncIterator(iterator, drop_remainder=False).get_next()
