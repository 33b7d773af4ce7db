from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives.statistics import stats
from lockstep._src.compat.sok import job, lookups, starting
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.variables import make
from lockstep._src.scope import embedding_scope, scope
from lockstep.testing import call_workers

VALUES = np.arange(17 * 3, dtype=np.float32).reshape(17, 3)
IDS = tf.SparseTensor([[0, 0], [0, 1], [2, 0], [2, 1]], tf.constant([1, 1, 3, 4], tf.int64), [4, 3])


def lookup(params, ids, weights=None, combiners=None):
    return lookups.lookup_sparse(params, ids, weights, combiners, False)


def test_the_program_of_the_documentation(started):
    v1 = make(np.arange(17 * 3).reshape(17, 3), dtype=tf.float32)
    v2 = make(np.arange(7 * 5).reshape(7, 5), dtype=tf.float32)
    first = tf.SparseTensor([[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]], [1, 1, 3, 4, 5], [2, 3])
    second = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], [1, 2, 3], [2, 2])
    found = lookup([v1, v2], [first, second], combiners=["sum", "sum"])
    np.testing.assert_array_equal(found[0], [[6, 8, 10], [36, 39, 42]])
    np.testing.assert_array_equal(found[1], [[5, 6, 7, 8, 9], [25, 27, 29, 31, 33]])


def test_one_table_gives_a_tensor_and_lists_give_a_list(started):
    table = make(VALUES)
    expected = [VALUES[1], np.zeros(3), (VALUES[3] + VALUES[4]) / 2, np.zeros(3)]
    for params, ids, combiner in ((table, IDS, None), ([table], IDS, "mean"), (table, IDS, ["mean"])):
        found = lookup(params, ids, combiners=combiner)
        np.testing.assert_array_equal(found, expected)
        assert found.shape == [4, 3]
    assert isinstance(lookup([table], [IDS]), list)
    np.testing.assert_array_equal(lookup(table, [IDS])[0], expected)
    np.testing.assert_array_equal(lookup([table], (IDS,), combiners=[b"mean"])[0], expected)


@pytest.mark.parametrize("ids_are", ["sparse", "ragged"])
@pytest.mark.parametrize("weights_are", ["sparse", "ragged"])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_weights(started, ids_are, weights_are, combiner):
    table = make(VALUES)
    weights = IDS.with_values(tf.constant([1.0, 2.0, 3.0, 0.5]))
    as_given = {"sparse": lambda t: t, "ragged": tf.RaggedTensor.from_sparse}
    found = lookup(table, as_given[ids_are](IDS), as_given[weights_are](weights), combiner)
    sums = np.array([3 * VALUES[1], np.zeros(3), 3 * VALUES[3] + 0.5 * VALUES[4], np.zeros(3)])
    totals = [[3.0], [1.0], [3.5], [1.0]] if combiner == "mean" else 1.0
    np.testing.assert_allclose(found, sums / totals, rtol=1e-6)


@pytest.mark.parametrize("ids_type", [tf.int32, tf.int64, tf.uint32])
def test_types(started, ids_type):
    ids = tf.cast(IDS, ids_type)
    assert lookup(make(VALUES.astype(np.float16)), ids).dtype == tf.float16
    assert lookup(DynamicVariable(3, "1", var_type="hbm", dtype=tf.float16), ids).dtype == tf.float16


def test_gradients_are_by_local_row_and_by_key(started):
    tables = [make(VALUES), DynamicVariable(3, VALUES, var_type="hbm")]
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(one) for one in lookup(tables, [IDS, IDS], combiners=["sum", "sum"])])
    for gradient in tape.gradient(loss, tables):
        order = np.argsort(gradient.indices)
        np.testing.assert_array_equal(gradient.indices.numpy()[order], [1, 3, 4])
        np.testing.assert_array_equal(gradient.values.numpy()[order, 0], [2, 1, 1])


def test_a_row_for_each_id(started):
    table = make(VALUES)
    ids = tf.constant([[1, 2], [2, 16]])
    with tf.GradientTape() as tape:
        found = lookups.all2all_dense_embedding(table, ids)
        loss = tf.reduce_sum(found * [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(found, VALUES[ids])
    gradient = tf.convert_to_tensor(tape.gradient(loss, table)).numpy()
    np.testing.assert_array_equal(gradient[[1, 2, 16]], [[1, 2, 3], [2, 4, 6], [1, 2, 3]])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((lambda: [make(VALUES)], [IDS, IDS]), ValueError, "sp_ids: got 2, wanted 1, one for each of params"),
        ((lambda: make(VALUES), IDS, [None, None]), ValueError, "sp_weights: got 2, wanted 1"),
        ((lambda: make(VALUES), IDS, None, ["sum", "sum"]), ValueError, "combiners: got 2, wanted 1"),
        ((lambda: make(VALUES), IDS, None, "sqrtn"), ValueError, "combiners: got 'sqrtn', wanted 'sum' or 'mean'"),
        (
            (lambda: tf.constant(VALUES), IDS),
            TypeError,
            "wanted sok.Variable, sok.DynamicVariable or a table of a scope",
        ),
        (
            (lambda: make(VALUES), tf.constant([[1]])),
            TypeError,
            "sp_ids: got .* wanted tf.SparseTensor or tf.RaggedTensor",
        ),
        ((lambda: make(VALUES), tf.cast(IDS, tf.float32)), TypeError, "are float32, wanted integers"),
        ((lambda: make(VALUES.astype(int)), IDS), TypeError, "rows of .* are int64, wanted a floating-point type"),
        (
            (lambda: make(VALUES), tf.ragged.constant([[1, 2], [3]]), tf.ragged.constant([[1.0], [2.0, 3.0]])),
            ValueError,
            "wanted one weight for each id",
        ),
    ],
)
def test_wrong_arguments(started, arguments, error, message):
    table, *others = arguments
    with pytest.raises(error, match=message):
        lookup(table(), *others)


@pytest.mark.parametrize("wrong", [17, -1])
def test_an_id_out_of_range_is_named(started, wrong):
    ids = tf.ragged.constant([[3, wrong]], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"table 'mine.*': id {wrong} at position 1 .*\[0, 17\)"):
        lookup(make(VALUES, name="mine"), ids)


def check_tables_of_scopes():
    starting.init("horovod", use_legacy_optimizer=False)
    with embedding_scope():
        table = tf.Variable(VALUES)
    own = make(VALUES, mode="localized:1")
    with scope():
        found = lookup([table, own, make(VALUES)], [IDS] * 3, combiners=["sum"] * 3)
    for one in found:
        np.testing.assert_array_equal(one, [2 * VALUES[1], np.zeros(3), VALUES[3] + VALUES[4], np.zeros(3)])
    ids = tf.ragged.constant([[3, 17]] if job.rank() else [[3]], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1: table .* id 17"):
        lookup(own, ids)


@pytest.mark.workers
def test_tables_of_scopes_and_wrong_ids_of_one_rank():
    call_workers(check_tables_of_scopes, 2, timeout_s=120)


def check_exchanges():
    starting.init("horovod", use_legacy_optimizer=False)
    tables = [make(VALUES, mode=f"localized:{i % 2}" if i % 3 == 0 else None) for i in range(6)]
    tables += [DynamicVariable(3, "1", var_type="hbm", mode=f"localized:{i}" if i < 2 else None) for i in range(4)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(one) for one in lookup(tables, [IDS] * 10)])
        return [one.values for one in tape.gradient(loss, tables)]

    step()
    before = stats()
    step()
    return stats(since=before)["collectives"]


# Promise (sok.md): lookups in tables of all kinds share their exchanges.
@pytest.mark.workers
def test_tables_of_all_kinds_share_exchanges():
    """There are three: of ids, of rows and of gradients."""
    assert call_workers(check_exchanges, 2, timeout_s=120) == [3, 3]
