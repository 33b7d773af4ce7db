"""Tests of LockstepGroupedAuc against a count of pairs."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops


def auc(labels, predictions):
    """Returns the share of pairs of a positive and a negative sample that are in order; a tie is half a pair."""
    pairs = [(p, n) for p, n in itertools.product(predictions[labels], predictions[~labels])]
    return np.mean([(p > n) + 0.5 * (p == n) for p, n in pairs])


def expected(labels, predictions, groups):
    """Returns the sums over the runs of equal groups that have samples of both classes."""
    begins = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    weighted = samples = 0
    for begin, end in itertools.pairwise([*begins, len(groups)]):
        if len(set(labels[begin:end])) == 2:
            weighted += (end - begin) * auc(labels[begin:end], predictions[begin:end])
            samples += end - begin
    return [weighted, samples]


@pytest.mark.parametrize("seed", range(4))
def test_sums_are_those_of_all_pairs_of_samples(seed):
    random = np.random.default_rng(seed)
    labels = random.random(60) < 0.4
    predictions = random.integers(0, 5, 60).astype(np.float64)  # with ties
    groups = np.sort(random.integers(-3, 9, 60))
    np.testing.assert_allclose(
        ops.lockstep_grouped_auc(labels, predictions, groups), expected(labels, predictions, groups)
    )


def test_a_group_that_comes_again_is_another_group():
    labels, predictions = np.array([True, False] * 2), np.array([2.0, 1.0, 1.0, 2.0])
    np.testing.assert_array_equal(ops.lockstep_grouped_auc(labels, predictions, [1, 1, 1, 1]), [4 * 0.5, 4])
    labels, groups = np.array([True, False, False, True, False]), np.array([1, 1, 2, 1, 1])
    got = ops.lockstep_grouped_auc(labels, np.array([2.0, 1.0, 5.0, 1.0, 2.0]), groups)
    np.testing.assert_array_equal(got, [2 * 1.0 + 2 * 0.0, 4])


def test_a_batch_without_samples_or_of_one_class_adds_nothing():
    assert ops.lockstep_grouped_auc(tf.zeros([0], tf.bool), tf.zeros([0], tf.float64), []).numpy().tolist() == [0, 0]
    assert ops.lockstep_grouped_auc([True, True], [0.1, 0.2], [1, 1]).numpy().tolist() == [0, 0]


@pytest.mark.parametrize(
    ("labels", "predictions", "groups", "message"),
    [
        ([True, False], [0.5], [1, 1], r"got labels of shape \[2\], predictions \[1\] and groups \[2\]"),
        ([True, False], [0.5, 0.1], [1], r"predictions \[2\] and groups \[1\]"),
        ([[True], [False]], [[0.5], [0.1]], [[1], [1]], r"got labels of shape \[2,1\]"),
        ([True, False], [0.5, np.nan], [1, 1], "sample 1"),
    ],
)
def test_shapes_that_do_not_fit_and_nan_are_refused(labels, predictions, groups, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.lockstep_grouped_auc(labels, predictions, groups)


def test_shapes_are_checked_before_the_run():
    with tf.Graph().as_default():
        labels = tf.zeros([3], tf.bool)
        assert ops.lockstep_grouped_auc(labels, tf.zeros([3], tf.float64), tf.zeros([3], tf.int64)).shape == [2]
        with pytest.raises(ValueError, match="3 and 2"):
            ops.lockstep_grouped_auc(labels, tf.zeros([2], tf.float64), tf.zeros([3], tf.int64))
