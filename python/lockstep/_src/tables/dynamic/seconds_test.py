"""Tests of the time at which keys were last seen: when it is set, what keeps it, and who may ask for it."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import scope
from lockstep._src.tables import dynamic
from lockstep.testing import call_workers

v1 = tf.compat.v1
OPTIONS = {
    "recorded": {"record_seconds": True},
    "for eviction": {"evict_option": dynamic.TimeEvict(10**6)},
    "recorded, counted keys": {"record_seconds": True, "filter_option": dynamic.CounterFilter(2)},
}


def table_of(options, **arguments):
    return dynamic.get_embedding_variable(
        "table", 2, initializer=1.0, ev_option=dynamic.EmbeddingVariableOption(**options), **arguments
    )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_seconds_are_those_of_the_last_lookup_or_insertion(options):
    table, begin = table_of(options), int(time.time())
    table.sparse_read([1, 2])
    table.insert(tf.constant([3], tf.int64), tf.zeros([1, 2]))
    seconds = table.get_seconds([[1, 2], [3, 4]])
    assert (seconds.shape, seconds.dtype) == ([2, 2], tf.int64)
    first, end = seconds.numpy(), time.time()
    assert first[1, 1] == 0
    assert all(begin <= second <= end for second in first.ravel()[:3])
    while int(time.time()) == first.max():
        time.sleep(0.05)
    table.sparse_read([2])
    table.insert(tf.constant([3], tf.int64), tf.zeros([1, 2]))
    with dynamic.evaluating():
        table.sparse_read([1])
    later = table.get_seconds([1, 2, 3]).numpy()
    assert later[0] == first[0, 0] and all(later[1:] > first.max())


def test_seconds_of_strings():
    table = table_of({"record_seconds": True}, key_dtype=tf.string)
    table.sparse_read([b"a"])
    assert (table.get_seconds([b"a", b"b"]).numpy() > 0).tolist() == [True, False]


def test_seconds_that_are_not_recorded_are_an_error():
    with pytest.raises(tf.errors.FailedPreconditionError, match="table 'table': times are not recorded"):
        table_of({"record_version": True}).get_seconds([1])


def save_and_restore(folder, options):
    """Returns the seconds of this worker's keys when they are saved, when they are restored, and the time of both."""
    context.ensure_initialized()
    with tf.Graph().as_default(), scope(), v1.Session() as session:
        table = table_of(options)
        keys = np.arange(10)
        seconds, seen = table.get_seconds(keys), table.sparse_read(np.repeat(keys, 2))
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        session.run(seen)
        saved, path = session.run(seconds), saver.save(session, folder, write_meta_graph=False)
        while int(time.time()) <= saved.max():
            time.sleep(0.05)
        session.run(v1.global_variables_initializer())
        saver.restore(session, path)
        return saved, session.run(seconds)


@pytest.mark.workers
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("workers", [1, 2])
def test_seconds_are_kept_in_checkpoints(tmp_path, workers, options):
    for saved, restored in call_workers(save_and_restore, workers, str(tmp_path / "model.ckpt"), options):
        np.testing.assert_array_equal(restored, saved)
        assert (saved > 0).any()
