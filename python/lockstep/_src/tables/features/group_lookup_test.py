"""Tests of lookups of several tables in one call against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables.features.group_lookup import group_embedding_lookup, group_embedding_lookup_sparse

tf1 = tf.compat.v1
# Two of the tables have the same width and different combiners; the last example of each has no ids.
WIDTHS = (4, 4, 3)
COMBINERS = ("sum", "mean", "sqrtn")
LENGTHS = ([2, 0, 3, 0], [0, 1, 2, 0], [1, 1, 0, 0])
ROWS = 11


def _case(seed):
    rng = np.random.default_rng(seed)
    tables = [rng.normal(size=[ROWS, width]).astype(np.float32) for width in WIDTHS]
    ids = [rng.integers(0, ROWS, sum(lengths)) for lengths in LENGTHS]
    weights = [rng.uniform(0.5, 2, sum(lengths)).astype(np.float32) for lengths in LENGTHS]
    return tables, ids, weights


def _pooled(table, ids, lengths, weights, combiner):
    out, ends = [], np.cumsum(lengths)
    for start, end in zip(ends - lengths, ends, strict=True):
        w = weights[start:end, np.newaxis]
        total = (table[ids[start:end]] * w).sum(0)
        divisor = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        out.append(total / divisor if end > start else np.zeros(table.shape[1]))
    return np.array(out, np.float32)


def _variables(tables):
    return [tf1.get_variable(f"t{i}", initializer=table) for i, table in enumerate(tables)]


def _ragged(values, lengths):
    return tf.RaggedTensor.from_row_lengths(values, lengths)


# Promise (deeprec.md): grouped lookups and their gradients equal numpy's.
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_each_table_is_combined_in_its_own_way(sharded, weighted):
    tables, ids, weights = _case(0)
    with tf.Graph().as_default(), (embedding_scope if sharded else scope)(), tf1.Session() as session:
        variables = _variables(tables)
        sparse = [_ragged(v, n).to_sparse() for v, n in zip(ids, LENGTHS, strict=True)]
        given = [_ragged(v, n) for v, n in zip(weights, LENGTHS, strict=True)] if weighted else None
        pooled = group_embedding_lookup_sparse(variables, sparse, COMBINERS, given)
        gradients = tf1.gradients(tf.add_n([tf.reduce_sum(one) for one in pooled]), variables)
        session.run(tf1.global_variables_initializer())
        values, slices = session.run([pooled, gradients])
    for i, value in enumerate(values):
        w = weights[i] if weighted else np.ones_like(weights[i])
        np.testing.assert_allclose(value, _pooled(tables[i], ids[i], LENGTHS[i], w, COMBINERS[i]), rtol=1e-5)
        # The sum is linear in the table, so its gradient equals the sums over unit tables.
        dense = np.zeros_like(tables[i])
        np.add.at(dense, slices[i].indices, slices[i].values)
        units = [_pooled(np.eye(ROWS)[:, [row]], ids[i], LENGTHS[i], w, COMBINERS[i]).sum() for row in range(ROWS)]
        np.testing.assert_allclose(dense, np.tile(np.array(units)[:, np.newaxis], WIDTHS[i]), rtol=1e-5, atol=1e-6)


def test_ragged_ids_one_combiner_for_all_and_none_for_the_mean():
    tables, ids, weights = _case(1)
    with tf.Graph().as_default(), tf1.Session() as session:
        variables = _variables(tables)
        ragged = [_ragged(v, n) for v, n in zip(ids, LENGTHS, strict=True)]
        lookups = {c: group_embedding_lookup_sparse(variables, ragged, c) for c in ("sum", None)}
        one = group_embedding_lookup_sparse(variables[0], ragged[:1], ["sum"])
        session.run(tf1.global_variables_initializer())
        values, (single,) = session.run([list(lookups.values()), one])
    for combiner, results in zip(("sum", "mean"), values, strict=True):
        for i, result in enumerate(results):
            expected = _pooled(tables[i], ids[i], LENGTHS[i], np.ones_like(weights[i]), combiner)
            np.testing.assert_allclose(result, expected, rtol=1e-5)
    np.testing.assert_array_equal(single, values[0][0])


def test_a_batch_without_any_ids_is_zeros():
    with tf.Graph().as_default(), tf1.Session() as session:
        table = tf1.get_variable("t", initializer=np.ones([ROWS, 3], np.float32))
        empty = tf.SparseTensor(np.zeros([0, 2], np.int64), np.zeros([0], np.int64), [5, 0])
        results = [group_embedding_lookup_sparse(table, empty, c)[0] for c in COMBINERS]
        sequence = group_embedding_lookup_sparse(table, empty, "sum", is_sequence=True)[0]
        session.run(tf1.global_variables_initializer())
        for value in session.run(results):
            np.testing.assert_array_equal(value, np.zeros([5, 3]))
        assert session.run(sequence).shape == (5, 0, 3)


def test_sequences_keep_their_rows():
    tables, ids, _ = _case(2)
    with tf.Graph().as_default(), tf1.Session() as session:
        variables = _variables(tables)
        ragged = [_ragged(v, n) for v, n in zip(ids, LENGTHS, strict=True)]
        sequences = group_embedding_lookup_sparse(variables, ragged, "mean", is_sequence=True)
        gradients = tf1.gradients(tf.reduce_sum(sequences[0]), variables[0])
        session.run(tf1.global_variables_initializer())
        values, (slices,) = session.run([sequences, gradients])
    for table, one, lengths, value in zip(tables, ids, LENGTHS, values, strict=True):
        expected = np.zeros([len(lengths), max(lengths), table.shape[1]], np.float32)
        rows = iter(table[one])
        for example, length in enumerate(lengths):
            for place in range(length):
                expected[example, place] = next(rows)
        np.testing.assert_array_equal(value, expected)
    np.testing.assert_array_equal(np.sort(slices.indices), np.sort(ids[0]))


# Promise (deeprec.md): grouped lookups and their gradients equal numpy's.
def test_dense_ids_train_ordinary_variables():
    tables, _, _ = _case(3)
    ids = [np.array([[1, 2], [2, 10]]), np.array([3, 3]), np.array(7)]
    with tf.Graph().as_default(), tf1.Session() as session:
        variables = _variables(tables)
        rows = group_embedding_lookup(variables, ids)
        loss = tf.add_n([tf.reduce_sum(one) for one in rows])
        train_op = tf1.train.GradientDescentOptimizer(1.0).minimize(loss)
        session.run(tf1.global_variables_initializer())
        for value, table, one in zip(session.run(rows), tables, ids, strict=True):
            np.testing.assert_array_equal(value, table[one])
        session.run(train_op)
        for value, table, one in zip(session.run(variables), tables, ids, strict=True):
            expected = table.copy()
            np.subtract.at(expected, one, 1.0)
            np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((None, [], []), {}, ValueError, "params is None"),
        (([1, 2], [1], "sum"), {}, ValueError, "1 sp_ids for 2 tables"),
        (([1], [[1]], "sum"), {}, TypeError, "wanted a tf.SparseTensor or tf.RaggedTensor"),
        (([1], [tf.ragged.constant([[1]])], "max"), {}, ValueError, "combiner is 'max', wanted one of sum, mean"),
        (([1], [tf.ragged.constant([[1]])], ["sum"] * 2), {}, ValueError, "2 combiners for 1 tables"),
        (([1], [tf.ragged.constant([[1]])], "sum", []), {}, ValueError, "0 sp_weights for 1 tables"),
        (([1], [], "sum"), {"partition_strategy": "div"}, ValueError, "partition_strategy is 'div'"),
        (([1], [], "sum"), {"params_num_per_group": 0}, ValueError, "params_num_per_group is 0"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        group_embedding_lookup_sparse(*arguments, **options)


def test_weights_of_a_sequence_are_refused():
    ids = tf.ragged.constant([[1]])
    with pytest.raises(ValueError, match="sp_weights are for rows that are combined"):
        group_embedding_lookup_sparse([1], [ids], "sum", [tf.ragged.constant([[1.0]])], is_sequence=True)
