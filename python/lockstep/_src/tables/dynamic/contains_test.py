"""Tests of which keys a table says it has: this worker's admitted keys."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import scope
from lockstep._src.tables import dynamic
from lockstep.testing import call_workers
from lockstep.testing.tables import remove

v1 = tf.compat.v1


def table_of(key_dtype, **options):
    option = dynamic.EmbeddingVariableOption(**options)
    return dynamic.get_embedding_variable("table", 2, key_dtype, initializer=1.0, ev_option=option)


@pytest.mark.parametrize(
    ("key_dtype", "keys"),
    [
        (tf.int64, [[7, -(2**62)], [9, 11]]),
        (tf.int32, [[7, -(2**30)], [9, 11]]),
        (tf.string, [[b"", b"\0a"], [b"b", b"c"]]),
    ],
)
def test_admitted_keys_are_there_and_asking_changes_nothing(key_dtype, keys):
    table = table_of(key_dtype, filter_option=dynamic.CounterFilter(2), record_frequency=True)
    keys = tf.constant(keys, key_dtype)
    table.sparse_read(keys[0])
    table.sparse_read(keys[:, 1])
    for _ in range(2):
        found = table.contains(keys)
        assert found.dtype == tf.bool
        # The other keys were seen once, or never.
        np.testing.assert_array_equal(found, [[False, True], [False, False]])
    np.testing.assert_array_equal(table.get_frequency(keys), [[1, 2], [0, 1]])
    assert (table.total_count(), table.candidate_count()) == (1, 2)
    remove(table, keys[0])
    assert not np.any(table.contains(keys))


def keys_of_workers():
    context.ensure_initialized()
    with tf.Graph().as_default(), scope(), v1.Session() as session:
        table = table_of(tf.int64, placement=dynamic.KeyPlacement("remainder"))
        seen = table.sparse_read(tf.range(6, dtype=tf.int64))
        found = table.contains(tf.range(8, dtype=tf.int64))
        session.run(v1.global_variables_initializer())
        session.run(seen)
        return session.run(found)


@pytest.mark.workers
def test_a_worker_has_its_own_keys():
    for rank, found in enumerate(call_workers(keys_of_workers, 2)):
        np.testing.assert_array_equal(found, [key % 2 == rank and key < 6 for key in range(8)])
