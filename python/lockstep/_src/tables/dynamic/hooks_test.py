"""Tests that symbols stay replaced for dynamic tables as long as there is one."""

import gc

import keras
import pytest
import tensorflow as tf

from lockstep import scope
from lockstep.embedding import get_embedding_variable
from lockstep.testing import call_workers
from lockstep.testing.replaced import Snapshot

pytestmark = pytest.mark.workers

AS_LISTED = [], []


def _make_and_drop_tables():
    keras.Model, tf.compat.v1.keras.models.Model  # noqa: B018  loads modules that are loaded lazily
    with scope():
        pass
    before = Snapshot()
    with scope():
        table = get_embedding_variable("table", 4)
        in_scope = before.differences("dynamic tables", "scope")
    after_scope = before.differences("dynamic tables")
    _train_in_graph()
    gc.collect()
    with scope():
        pass
    one_is_left = before.differences("dynamic tables")
    del table
    gc.collect()
    with scope():
        pass
    return in_scope, after_scope, one_is_left, before.replaced()


def _train_in_graph():
    with tf.Graph().as_default():
        table = get_embedding_variable("table_of_graph", 4)
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, tf.constant([3], tf.int64)))
        tf.compat.v1.train.AdagradOptimizer(0.1).minimize(loss)


def test_symbols_are_restored_when_a_scope_ends_and_no_table_is_left():
    assert call_workers(_make_and_drop_tables, 1, timeout_s=120) == [(AS_LISTED, AS_LISTED, AS_LISTED, {})]
