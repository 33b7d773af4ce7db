"""Tests of which lookups share an exchange: lookups of a run that do not need each other, alike on all workers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

tf1 = tf.compat.v1


def lookups_that_depend_on_each_other():
    """Looks up ids of the second table that are read from the first; a third table in a branch, a fourth in a loop."""
    with tf.Graph().as_default(), scope(), tf1.Session() as session:
        with embedding_scope():
            tables = [
                tf1.get_variable(f"t{i}", [8, 1], initializer=tf1.constant_initializer(np.roll(np.arange(8.0), i)))
                for i in range(4)
            ]
        first = tf.nn.embedding_lookup(tables[0], tf.constant([1, 5]) + context.rank)
        second = tf.nn.embedding_lookup(tables[1], tf.cast(first[:, 0], tf.int64))
        go = tf1.placeholder(tf.bool, [])
        third = tf.cond(go, lambda: tf.nn.embedding_lookup(tables[2], [0, 1]), lambda: tf.zeros([2, 1]))
        looped = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, total: (i + 1, total + tf.nn.embedding_lookup(tables[3], [i, i + 1])),
            (tf.constant(0), tf.zeros([2, 1])),
        )[1]
        session.run(tf1.global_variables_initializer())
        for taken in (True, False, True):
            values = session.run([first, second, third, looped], {go: taken})
            ids = np.array([1, 5]) + context.rank
            np.testing.assert_array_equal(values[0][:, 0], ids)
            np.testing.assert_array_equal(values[1][:, 0], np.roll(np.arange(8), 1)[ids])
            np.testing.assert_array_equal(values[2][:, 0], np.roll(np.arange(8), 2)[[0, 1]] * taken)
            np.testing.assert_array_equal(values[3][:, 0], looped_sums())


def looped_sums():
    table = np.roll(np.arange(8), 3)
    return [table[[0, 1, 2]].sum(), table[[1, 2, 3]].sum()]


def runs_of_some_tables():
    """Runs different fetches: each run groups the lookups that it fetches, and uses no kernels of another run."""
    with tf.Graph().as_default(), scope(), tf1.Session() as session:
        with embedding_scope():
            tables = [
                tf1.get_variable(f"t{i}", [8 + i, 2], initializer=tf1.constant_initializer(float(i))) for i in range(4)
            ]
        rows = [tf.nn.embedding_lookup(table, [i, i + 1]) for i, table in enumerate(tables)]
        session.run(tf1.global_variables_initializer())
        for some in ([0, 1, 2], [0, 1], [0, 3], [0, 1, 2, 3], [0, 1], [2]):
            for i, value in zip(some, session.run([rows[i] for i in some]), strict=True):
                np.testing.assert_array_equal(value, np.full([2, 2], float(i)))


def the_chief_has_nodes_of_its_own():
    """Builds more nodes on the chief, so that names differ by their numbers; the groups must still be the same."""
    with tf.Graph().as_default(), scope(), tf1.Session() as session:
        with embedding_scope():
            tables = [tf1.get_variable(f"t{i}", [4, 2], initializer=tf1.ones_initializer()) for i in range(3)]
        if context.rank == 0:
            with tf.name_scope("tower"):
                tf.constant(1.0, name="Gather")
        with tf.name_scope("tower"):
            total = tf.add_n([tf.nn.embedding_lookup(table, [0, 3]) for table in tables])
        session.run(tf1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(total), np.full([2, 2], 3.0))


def an_id_out_of_range_names_its_table():
    with tf.Graph().as_default(), scope(), tf1.Session() as session:
        with embedding_scope():
            tables = [tf1.get_variable(f"t{i}", [4, 2], initializer=tf1.ones_initializer()) for i in range(3)]
        ids = tf1.placeholder(tf.int32, [None])
        rows = [tf.nn.embedding_lookup(table, ids) for table in tables[:2]]
        rows.append(tf.nn.embedding_lookup(tables[2], ids + 3))
        session.run(tf1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"rank 1.*table 't2'.*id 4|table 't2'.*id 4"):
            session.run(rows, {ids: [context.rank]})
        assert len(session.run(rows, {ids: [0]})) == 3


def test_groups_follow_what_runs_and_what_depends_on_what():
    call_workers(grouped_cases, 2, timeout_s=300)


def grouped_cases():
    runs_of_some_tables()
    the_chief_has_nodes_of_its_own()
    an_id_out_of_range_names_its_table()
    lookups_that_depend_on_each_other()
