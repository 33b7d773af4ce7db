"""Tests of the groups of gradients that are sent together."""

from __future__ import annotations

import tensorflow as tf

from lockstep._src.gradients.grouping import in_buckets, in_groups


def dense(elements, dtype=tf.float32):
    return tf.zeros([elements], dtype)


def slices():
    return tf.IndexedSlices(tf.zeros([1, 2]), tf.constant([0]))


def test_buckets_are_runs_of_about_equal_size_in_backward_order():
    gradients = [dense(n) for n in (4, 4, 2, 2, 4)]
    assert in_buckets(range(5), gradients, 2) == [[4, 3, 2], [1, 0]]
    assert in_buckets(range(5), gradients, 1) == [[4, 3, 2, 1, 0]]
    assert in_buckets(range(5), gradients, 9) == [[4], [3], [2], [1], [0]]


def test_a_bucket_is_of_one_type_and_types_take_turns():
    gradients = [dense(1), dense(1, tf.float64), dense(1), dense(1, tf.float64)]
    assert in_buckets(range(4), gradients, 2) == [[3], [2], [1], [0]]


def test_slices_are_alone_and_first():
    gradients = [slices(), dense(1), None, slices(), dense(1)]
    assert in_buckets([0, 1, 3, 4], gradients, 1) == [[0], [3], [4, 1]]


def test_groups_by_number_and_by_variables():
    gradients, variables = [dense(1) for _ in range(5)], [tf.Variable(0.0) for _ in range(5)]
    assert in_groups(range(5), gradients, variables, 2) == [[0, 1], [2, 3, 4]]
    assert in_groups(range(2), gradients, variables, 7) == [[0], [1]]
    assert in_groups([], gradients, variables, 2) == []
    named = [[variables[3], variables[0]], [variables[2]]]
    assert in_groups(range(5), gradients, variables, named) == [[0, 3], [1], [2], [4]]


def test_without_groups_all_are_one_eagerly_and_each_is_one_in_a_graph():
    variables = [tf.Variable(0.0) for _ in range(3)]
    assert in_groups(range(3), [dense(1), slices(), dense(1)], variables, None) == [[0, 2], [1]]
    with tf.Graph().as_default():
        assert in_groups(range(3), [dense(1), slices(), dense(1)], variables, None) == [[0], [1], [2]]
