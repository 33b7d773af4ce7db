"""Tests of LockstepValidIds against a loop."""

import re

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops


def valid(ids, splits, weights=(), problems=(), **options):
    options = {"positive_weights": False, "fill": False, "table": "user"} | options
    return ops.lockstep_valid_ids(ids, tf.constant(splits, tf.int64), list(weights), list(problems), **options)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("weights_dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("fill", [False, True])
def test_ids_below_zero_and_ids_without_a_positive_weight_are_dropped(dtype, weights_dtype, positive, fill):
    random = np.random.default_rng(4)
    lengths = random.integers(0, 4, 30)
    ids, weights = random.integers(-3, 6, lengths.sum()), random.integers(-2, 4, lengths.sum())
    splits = np.append(0, np.cumsum(lengths))
    kept_ids, kept_weights, kept_splits = [], [], [0]
    for begin, end in zip(splits, splits[1:], strict=False):
        for i in range(begin, end):
            if ids[i] >= 0 and (weights[i] > 0 or not positive):
                kept_ids.append(ids[i])
                kept_weights.append(weights[i])
        kept_splits.append(len(kept_ids))
    got = valid(
        tf.constant(ids, dtype), splits, [tf.constant(weights, weights_dtype)], positive_weights=positive, fill=fill
    )
    assert got.valid_ids.numpy().tolist() == kept_ids + [0] * fill
    assert got.valid_splits.numpy().tolist() == kept_splits
    assert got.valid_weights[0].numpy().tolist() == kept_weights
    assert got.problem.numpy() == b""


def test_all_strings_are_valid():
    got = valid(tf.constant(["", "-1"]), [0, 0, 2], fill=True)
    assert got.valid_ids.numpy().tolist() == [b"", b"-1", b""]
    assert got.valid_splits.numpy().tolist() == [0, 0, 2]


def test_valid_ids_are_not_copied():
    ids = tf.constant([1, 2, 3])
    assert np.shares_memory(valid(ids, [0, 3]).valid_ids._numpy(), ids._numpy())
    ids = tf.constant([1, -2, 3])
    assert np.shares_memory(valid(ids, [0, 3], drops=False).valid_ids._numpy(), ids._numpy())


REFUSED = [
    ([1, 2], [0, 3], [], [], "table 'user': splits begin with 0 and end with 3, wanted 0 and the number of ids, 2"),
    ([1, 2], [1, 2], [], [], "table 'user': splits begin with 1 and end with 2"),
    ([1, 2], [0, 2, 1, 2], [], [], r"table 'user': splits\[2\] is 1 after 2: splits must not fall"),
    ([1, 2], [], [], [], "table 'user': got no splits"),
    ([1, 2], [0, 2], [[1.0]], [], "table 'user': got 1 weights for 2 ids, wanted one for each"),
    ([1, 2], [0, 2], [], ["", "an earlier step failed"], "an earlier step failed"),
]


@pytest.mark.parametrize(("ids", "splits", "weights", "problems", "message"), REFUSED)
def test_wrong_inputs_are_refused_or_reported_to_the_route(ids, splits, weights, problems, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        valid(ids, splits, weights, problems)
    got = valid(ids, splits, weights, problems, defers=True)
    assert re.match(message, got.problem.numpy().decode())
    assert got.valid_ids.shape == [0] and not got.valid_splits.numpy().any()


def test_more_than_one_tensor_of_weights_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="got 2 weights, wanted at most 1"):
        valid([1], [0, 1], [[1.0], [1.0]])
