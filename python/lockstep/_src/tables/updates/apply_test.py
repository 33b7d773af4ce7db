"""Tests that a wrong update raises an error that names the cause, and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops
from lockstep._src.scope import scope
from lockstep._src.tables.dynamic.creation import get_embedding_variable
from lockstep._src.tables.updates.apply import apply_rule
from lockstep._src.tables.updates.rules import Rule, Slot

tf1 = tf.compat.v1


def update(tables, slots, values, indices, rule="adagrad", hyperparameters=(0.1, 0.0), **attrs):
    """Creates the operation for one table, or for several of one rule."""
    count = len(tables)
    return ops.lockstep_sparse_update(
        [t.handle for t in tables],
        [s.handle for s in slots],
        [tf.constant(h, tf.float32) for h in hyperparameters] * count,
        [tf.constant(v, tf.float32) for v in values],
        [tf.constant(i, tf.int64) for i in indices],
        **{"names": ["emb"] * count, "rules": [rule] * count, "all_rows": [False] * count}
        | {"hyperparameter_names": ["learning_rate", "epsilon"] * count}
        | {"dynamic": [False] * count, "slot_names": [], "slot_initials": []}
        | attrs,
    )


def ones(*shape, dtype=tf.float32):
    return tf.Variable(tf.ones(shape, dtype))


@pytest.mark.parametrize(
    ("values", "indices", "slot", "message"),
    [
        (np.ones([2, 3]), [1, 5], ones(5, 3), r"table 'emb' \(adagrad\): indices\[1\] is 5, wanted one in \[0, 5\)"),
        (np.ones([2, 3]), [-1, 2], ones(5, 3), r"indices\[0\] is -1, wanted one in \[0, 5\)"),
        (np.ones([2, 4]), [1, 2], ones(5, 3), r"indices of shape \[2\] and values of shape \[2,4\].*shape \[5,3\]"),
        (np.ones([3, 3]), [1, 2], ones(5, 3), r"indices of shape \[2\] and values of shape \[3,3\]"),
        (np.ones([1, 3]), [[1]], ones(5, 3), r"indices of shape \[1,1\]"),
        (np.ones([1, 3]), [1], ones(5, 2), r"slot 0 is float\[5,2\], wanted float of shape \[5,3\]"),
        (np.ones([1, 3]), [1], ones(5, 3, dtype=tf.float64), r"slot 0 is double\[5,3\], wanted float"),
    ],
)
def test_what_does_not_fit_is_named(values, indices, slot, message):
    table = ones(5, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        update([table], [slot], [values], [indices])
    np.testing.assert_array_equal(table, np.ones([5, 3]))
    np.testing.assert_array_equal(slot, np.ones(slot.shape))


def test_nothing_is_changed_where_one_of_several_tables_is_wrong():
    tables, slots = [ones(5, 3), ones(4, 2)], [ones(5, 3), ones(4, 2)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[0\] is 4"):
        update(tables, slots, [np.ones([1, 3]), np.ones([1, 2])], [[0], [4]])
    np.testing.assert_array_equal(tables[0], np.ones([5, 3]))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"rule": "adagrab"}, "no rule 'adagrab'; the rules are sgd, momentum,"),
        ({"rule": "adam"}, "1 slots of 2, .* and 2 hyperparameters of 6"),
        ({"dynamic": [True]}, "1 slots of 0, 0 slot_names and 0 slot_initials of 1"),
        ({"names": ["a", "b"]}, "1 tables, but 2 names"),
        ({"hyperparameters": (0.1, np.nan)}, "epsilon is nan, wanted a finite number"),
        ({"hyperparameters": ([0.1, 0.2], 0.0)}, r"hyperparameter 0 has shape \[2\], wanted a scalar"),
    ],
)
def test_rules_are_checked(attributes, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        update([ones(5, 3)], [ones(5, 3)], [np.ones([1, 3])], [[1]], **attributes)


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (["learning_rate", "eps"], (0.1, 0.0)),
        (["epsilon", "learning_rate"], (0.0, 0.1)),
        (["learning_rate"], (0.1, 0.0)),
        (["learning_rate"], (0.1,)),
        (["learning_rate", "epsilon", "rho"], (0.1, 0.0)),
    ],
    ids=["wrong", "swapped", "name missing", "name and value missing", "one too many"],
)
def test_hyperparameters_with_other_names_or_in_another_order_are_refused(names, values):
    table, slot = ones(5, 3), ones(5, 3)
    got = ", ".join(names)
    message = rf"table 'emb', rule 'adagrad': got hyperparameters \[{got}\], wanted \[learning_rate, epsilon\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        update([table], [slot], [np.ones([1, 3])], [[1]], hyperparameters=values, hyperparameter_names=names)
    np.testing.assert_array_equal(table, np.ones([5, 3]))


def test_the_table_with_wrong_hyperparameters_is_named_among_several():
    tables, slots = [ones(5, 3), ones(4, 2)], [ones(5, 3), ones(4, 2)]
    names = ["learning_rate", "epsilon", "epsilon", "learning_rate"]
    message = r"table 'item', rule 'adagrad': got hyperparameters \[epsilon, learning_rate\], wanted \[learning_rate"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        gradients = [np.ones([1, 3]), np.ones([1, 2])]
        update(tables, slots, gradients, [[0], [1]], names=["user", "item"], hyperparameter_names=names)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_rules_hyperparameters_reach_the_operation_with_their_names(swapped):
    table, slot = ones(5, 3), ones(5, 3)
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


def test_variables_without_a_value_are_named():
    with tf.Graph().as_default(), tf1.Session() as session, scope():
        table = tf1.get_variable("emb", [5, 3], use_resource=True)
        optimizer = tf1.train.AdagradOptimizer(0.1)
        train_op = optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([1, 3]), tf.constant([1])), table)])
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"table 'emb' \(adagrad\): the variable is not in"):
            session.run(train_op)
        session.run(table.initializer)
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"table 'emb' \(adagrad\): slot 0 is not init"):
            session.run(train_op)


def test_a_variable_at_two_places_is_updated_at_both_one_after_the_other():
    table, slot = ones(5, 3), ones(5, 3)
    update([table, table], [slot, slot], [np.ones([1, 3]), np.full([1, 3], 2.0)], [[1], [1]])
    np.testing.assert_allclose(slot[1], np.full(3, 6.0))
    np.testing.assert_allclose(table[1], np.full(3, 1 - 0.1 / np.sqrt(2) - 0.2 / np.sqrt(6)), rtol=1e-6)


def test_who_has_read_a_variable_keeps_what_was_read():
    table, slot = ones(300, 16), ones(300, 16)
    before = table.read_value()
    update([table], [slot], [np.ones([300, 16])], [np.arange(300)])
    np.testing.assert_array_equal(before, np.ones([300, 16]))
    assert not np.any(table.numpy() == 1)


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
