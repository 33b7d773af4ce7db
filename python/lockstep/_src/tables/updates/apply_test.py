"""Tests of the optimizers' rules on tables: their hyperparameters and slots."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.scope import scope
from lockstep._src.tables.dynamic.creation import get_embedding_variable
from lockstep._src.tables.updates.apply import apply_rule
from lockstep._src.tables.updates.rules import Rule, Slot

tf1 = tf.compat.v1


@pytest.mark.parametrize("swapped", [False, True])
def test_a_rules_hyperparameters_reach_the_operation_with_their_names(swapped):
    table, slot = tf.Variable(tf.ones([5, 3])), tf.Variable(tf.ones([5, 3]))
    pairs = [("learning_rate", 0.1), ("momentum", 0.5)]
    hyperparameters = dict(reversed(pairs) if swapped else pairs)
    rule = Rule(None, "momentum", (Slot("velocity", 0.0),), lambda: hyperparameters, lambda variable, name: slot)
    if swapped:
        with pytest.raises(tf.errors.InvalidArgumentError, match="rule 'momentum': got .*momentum, learning_rate"):
            apply_rule(rule, table, tf.ones([1, 3]), tf.constant([1]))
    else:
        apply_rule(rule, table, tf.ones([1, 3]), tf.constant([1]))
        np.testing.assert_allclose(table[1], np.full(3, 1 - 0.1 * (0.5 * 1 + 1)), rtol=1e-6)
        np.testing.assert_allclose(slot[1], np.full(3, 0.5 * 1 + 1), rtol=1e-6)


def test_optimizers_of_one_name_have_slots_of_their_own():
    """Compares two optimizers with other initial slots and rates, on a dynamic table and on a variable."""

    def trained(make_table):
        with tf.Graph().as_default(), tf1.Session() as session, scope():
            table = make_table()
            rows = tf.nn.embedding_lookup(table, tf.constant([3, 1, 3], tf.int64))
            steps = []
            for rate in (0.1, 0.3):
                optimizer = tf1.train.AdagradOptimizer(rate, initial_accumulator_value=rate)
                steps.append(optimizer.minimize(tf.reduce_sum(tf.square(rows))))
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            for _ in range(2):
                for step in steps:
                    session.run(step)
            return session.run(rows)

    ones = tf1.ones_initializer()
    expected = trained(lambda: tf1.get_variable("table", [5, 2], initializer=ones, use_resource=True))
    np.testing.assert_allclose(
        trained(lambda: get_embedding_variable("table", 2, initializer=ones)), expected, rtol=1e-6
    )
