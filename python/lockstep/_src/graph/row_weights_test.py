"""Tests of the weights of workers by the rows of their batches, against numpy."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.graph import row_weights
from lockstep._src.graph.row_weights import RowWeight

tf1 = tf.compat.v1


@pytest.fixture
def session():
    with tf.Graph().as_default(), tf1.Session() as session:
        yield session


def batch(rows, *more):
    """Returns a registered batch: a tensor with these rows, and further parts."""
    x = tf1.placeholder_with_default(np.ones([rows, 2], np.float32), [None, 2])
    row_weights.note([x, *more], x)
    return x


def rows_of(session, weight):
    return session.run([weight.rows, weight.total])


@pytest.mark.parametrize("rows", [[8, 8, 8, 8], [8, 3, 0, 1]])
def test_the_mean_of_weighted_means_is_the_mean_of_all_rows(monkeypatch, session, rows):
    monkeypatch.setattr(row_weights, "context", types.SimpleNamespace(world_size=4))
    values = [np.random.default_rng(r).normal(size=r) for r in rows]
    weights = [RowWeight(tf.constant(r, tf.int64), tf.constant(sum(rows), tf.int64)) for r in rows]
    # The mean of no rows is NaN, and does not count.
    means = [tf.constant(v.mean() if v.size else np.nan, tf.float64) for v in values]
    weighted = session.run([w.times(mean) for w, mean in zip(weights, means, strict=True)])
    np.testing.assert_allclose(np.mean(weighted), np.concatenate(values).mean())
    np.testing.assert_allclose(np.mean(session.run([w.weight for w in weights])), 1.0)


def test_slices_keep_their_rows(session):
    weight = RowWeight(tf.constant(1, tf.int64), tf.constant(2, tf.int64))
    slices = tf.IndexedSlices(tf.constant([[2.0], [4.0]]), tf.constant([5, 3]), tf.constant([9, 1]))
    values, indices, shape = session.run(weight.times(slices))
    np.testing.assert_array_equal(values, [[1.0], [2.0]])
    assert (indices.tolist(), shape.tolist()) == ([5, 3], [9, 1])


def test_a_value_has_the_rows_of_the_batches_from_which_it_is_computed(session):
    a, b = batch(3), batch(5)
    assert row_weights.of([tf.constant(1.0), None, 2.0]) is None
    assert rows_of(session, row_weights.of([tf.reduce_sum(a)])) == [3, 3]
    assert rows_of(session, row_weights.of([tf.gather(a, [0]), None])) == [3, 3]
    assert rows_of(session, row_weights.of([a, tf.reduce_sum(b)])) == [8, 8]
    values = tf.IndexedSlices(b[:1], tf.constant([0]))
    assert rows_of(session, row_weights.of([values])) == [5, 5]


def test_a_value_in_a_branch_is_computed_from_the_batch_outside(session):
    a, found = batch(3), []

    def branch():
        value = tf.reduce_sum(a)
        found.append(row_weights.of([value]))
        return value

    graph = tf.compat.v1.get_default_graph()
    with graph.as_default():
        tf1.enable_control_flow_v2()
        try:
            tf.cond(tf1.placeholder(tf.bool, []), branch, lambda: 0.0)
        finally:
            tf1.disable_control_flow_v2()
    assert rows_of(session, found[0]) == [3, 3]


@pytest.mark.parametrize(
    "part, rows",
    [
        (lambda: tf.ragged.constant([[1], [2, 3], [], [4]]), 4),
        (lambda: tf.SparseTensor([[0, 1]], [1.0], [6, 2]), 6),
        (lambda: {"b": tf.zeros([2]), "a": tf.zeros([7, 1])}, 7),
        (lambda: (tf.constant(1.0), tf.zeros([5])), 5),
        (lambda: tf.constant(1.0), 1),
    ],
)
def test_rows_are_those_of_the_first_part_with_a_dimension(session, part, rows):
    source = tf.zeros([])
    row_weights.note(part(), source)
    assert rows_of(session, row_weights.of([source + 1.0])) == [rows, rows]


def test_a_batch_of_unknown_rank_has_no_weight(session):
    source = tf1.placeholder(tf.float32)
    row_weights.note(source, source)
    assert row_weights.of([source + 1.0]) is None
    value = tf.constant([1.0])
    assert row_weights.weighted(value) is value


def test_elements_are_the_batches_behind_a_value(session):
    data = tf1.data.make_one_shot_iterator(tf.data.Dataset.from_tensors((np.zeros([2]), np.ones([2])))).get_next()
    other = batch(3)
    assert row_weights.elements([data[0] + 1.0]) == [list(data)]
    assert row_weights.elements([other * 2.0]) == [[other]]
    assert row_weights.elements([tf.constant(1.0)]) == []


def test_a_loss_without_a_mask_is_known_to_have_a_value_for_each_row(session):
    x = tf1.placeholder_with_default(np.ones([4, 2], np.float32), [None, 2])
    y = tf.reduce_max(x, 1)
    row_weights.note([x, y], x)
    outside = tf1.placeholder_with_default(np.ones([3, 1], np.float32), [None, 1])
    column, output = tf.reshape(y, [-1, 1]), tf.matmul(x, tf.ones([2, 1]))
    logits, classes = tf.matmul(x, tf.ones([2, 3])), tf.cast(y, tf.int64)
    kept = tf.boolean_mask(y, y > 0), tf.boolean_mask(tf.squeeze(output, 1), y > 0)
    for losses, expected in (
        (tf.math.squared_difference(column, output), False),
        (tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(y[:, tf.newaxis] > 0, tf.float32), output), False),
        (tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(tf.expand_dims(y > 0, 1), tf.float32), output), False),
        (tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits), False),
        (
            tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(classes, 3) + 0 * x[:, :1], logits),
            True,
        ),  # a reshape of unknown size
        (tf.math.squared_difference(*kept), True),
        (tf.math.squared_difference(y[: tf.cast(y[0], tf.int32)], 1.0), True),
        (tf.reshape(x, [-1]) - 1, False),
        (tf.transpose(x)[0] - 1, True),
        (x[1:] - 1, True),
        (tf.math.abs(tf.matmul(x, x, transpose_b=True) - y), True),
        (tf.reduce_mean(x), False),
        (outside - 1, False),
        (tf.ones([2]), False),
    ):
        assert row_weights.counts_other_than_rows(losses) == expected, losses
