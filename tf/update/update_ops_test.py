"""Tests of LockstepSparseUpdate: an error names its cause, and changes nothing; a row is updated once."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops
from lockstep.testing import tables as dynamic_tables


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
        ({"rule": "adagrab"}, "unknown rule 'adagrab'; the rules are sgd, momentum,"),
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


def test_the_gradients_of_a_row_are_summed_before_its_update():
    """Updates rows of several threads, against numpy; -1 drops a gradient of a dynamic table."""
    random = np.random.default_rng(2)
    indices, values = random.integers(0, 900, 4000), random.integers(-4, 4, [4000, 8])
    gradients = np.zeros([900, 8])
    np.add.at(gradients, indices, values)
    accumulated = 1 + gradients**2
    wanted = np.where(np.isin(np.arange(900), indices)[:, None], 1 - 0.1 * gradients / np.sqrt(accumulated), 1)
    table, slot = ones(900, 8), ones(900, 8)
    update([table], [slot], [values], [indices])
    np.testing.assert_allclose(table, wanted, rtol=1e-6)
    np.testing.assert_allclose(slot, accumulated, rtol=1e-6)

    keys = tf.range(900, dtype=tf.int64)
    handle = dynamic_tables.make(8, initial_a=1.0)
    numbers = ops.lockstep_dynamic_table_resolve(handle, keys, tf.zeros([0], tf.int64)).numbers.numpy()
    given = np.append(numbers[indices], -1)
    update(
        [types.SimpleNamespace(handle=handle)],
        [],
        [np.append(values, [[9] * 8], axis=0)],
        [given],
        dynamic=[True],
        slot_names=["accumulator"],
        slot_initials=[1.0],
    )
    np.testing.assert_allclose(ops.lockstep_dynamic_table_lookup(handle, keys), wanted, rtol=1e-6)


def test_rows_without_a_gradient_are_updated_if_all_rows_are():
    table, slot = ones(3, 2), ones(3, 2)
    arguments = {"rule": "momentum", "hyperparameters": (0.1, 0.5), "all_rows": [True]}
    update([table], [slot], [np.ones([1, 2])], [[1]], hyperparameter_names=["learning_rate", "momentum"], **arguments)
    velocity = np.array([0.5, 1.5, 0.5])
    np.testing.assert_allclose(slot, np.tile(velocity[:, None], 2))
    np.testing.assert_allclose(table, 1 - 0.1 * np.tile(velocity[:, None], 2), rtol=1e-6)


def test_variables_without_a_value_are_named():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table, slot = (tf.compat.v1.get_variable(name, [5, 3], use_resource=True) for name in ("emb", "slot"))
        step = update([table], [slot], [np.ones([1, 3])], [[1]])
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"table 'emb' \(adagrad\): the variable is not in"):
            session.run(step)
        session.run(table.initializer)
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"table 'emb' \(adagrad\): slot 0 is not init"):
            session.run(step)
