"""Tests of LockstepPool, LockstepPoolGradient and LockstepSplits against numpy."""

import re

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.library import ops

ROWS, DIM = 5, 3
LENGTHS = [2, 0, 3, 1]
PLACES = [4, 0, 1, 1, 3, 2]
SPLITS = np.append(0, np.cumsum(LENGTHS))
EXAMPLES = np.repeat(np.arange(4), LENGTHS)
VALUES = np.random.default_rng(1).normal(size=[ROWS, DIM])
WEIGHTS = np.random.default_rng(2).uniform(0.5, 2, len(PLACES))
COMBINERS = ["sum", "mean", "sqrtn"]
DTYPES = {tf.float32: 1e-6, tf.float64: 1e-12, tf.float16: 1e-2, tf.bfloat16: 4e-2}


def shares(combiner, weights):
    """Returns the share of each row in each example, [examples, ROWS]."""
    dense = np.zeros([len(LENGTHS), ROWS])
    np.add.at(dense, (EXAMPLES, PLACES), weights)
    norms = {
        "sum": np.ones(len(LENGTHS)),
        "mean": np.bincount(EXAMPLES, weights, len(LENGTHS)),
        "sqrtn": np.sqrt(np.bincount(EXAMPLES, weights**2, len(LENGTHS))),
    }[combiner]
    return dense / np.where(norms == 0, 1, norms)[:, None]


def attributes(combiners, weighted):
    return {"combiners": combiners, "weighted": weighted, "tables": [f"t{i}" for i in range(len(combiners))]}


def pool(rows, places=PLACES, splits=SPLITS, weights=(), combiner="sum", **more):
    given = [tf.constant(rows)], [tf.constant(places, tf.int32)], [tf.constant(splits, tf.int64)], list(weights)
    return ops.lockstep_pool(*given, **{**attributes([combiner], [bool(weights)]), **more})


def pool_gradient(gradient, shape=(ROWS, DIM), places=PLACES, splits=SPLITS):
    given = [tf.constant(gradient)], [tf.constant(shape, tf.int64)], [tf.constant(places, tf.int32)]
    return ops.lockstep_pool_gradient(*given, [tf.constant(splits, tf.int64)], [], **attributes(["sum"], [False]))


@pytest.mark.pairwise
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_rows_are_combined_and_their_gradients_summed(combiner, weighted, dtype):
    rows = tf.cast(VALUES, dtype)
    matrix = shares(combiner, WEIGHTS if weighted else np.ones(len(PLACES)))
    weights = [tf.constant(WEIGHTS, tf.float64 if dtype == tf.float64 else tf.float32)] if weighted else []
    lists = [tf.constant(PLACES)], [tf.constant(SPLITS)], weights
    (pooled,) = ops.lockstep_pool([rows], *lists, **attributes([combiner], [weighted]))
    assert pooled.dtype == dtype
    error = DTYPES[dtype]
    np.testing.assert_allclose(tf.cast(pooled, tf.float64), matrix @ tf.cast(rows, tf.float64).numpy(), error, error)

    upstream = tf.cast(np.random.default_rng(3).normal(size=[len(LENGTHS), DIM]), dtype)
    shape = tf.constant([ROWS, DIM], tf.int64)
    (summed,) = ops.lockstep_pool_gradient([upstream], [shape], *lists, **attributes([combiner], [weighted]))
    assert summed.dtype == dtype
    wanted = matrix.T @ tf.cast(upstream, tf.float64).numpy()
    np.testing.assert_allclose(tf.cast(summed, tf.float64), wanted, error, error)


def test_several_lookups_are_combined_by_one_operation():
    """Looks up rows [ROWS, 2, 2] of float64 without weights, and rows [ROWS] of float32 with weights."""
    first, second = VALUES[:, [0, 1, 2, 0]].reshape(ROWS, 2, 2), VALUES[:, 0].astype(np.float32)
    pooled = ops.lockstep_pool(
        [first, second],
        [PLACES, PLACES],
        [SPLITS, SPLITS],
        [tf.constant(WEIGHTS, tf.float32)],
        **attributes(["mean", "sum"], [False, True]),
    )
    ones = np.ones(len(PLACES))
    np.testing.assert_allclose(pooled[0], np.einsum("er,rij->eij", shares("mean", ones), first))
    np.testing.assert_allclose(pooled[1], shares("sum", WEIGHTS) @ second, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"places": [4, 0, 1, 5, 3, 2]}, r"table 't0': places\[3\] is 5, wanted one of 5 rows"),
        ({"places": [4, 0, 1, -1, 3, 2]}, r"table 't0': places\[3\] is -1, wanted one of 5 rows"),
        ({"splits": [0, 2, 5]}, "table 't0': splits begin with 0 and end with 5, wanted 0 and the number of ids, 6"),
        ({"splits": [0, 4, 2, 6]}, r"table 't0': splits\[2\] is 2 after 4: splits must not fall"),
        ({"weights": [[1.0] * 5]}, r"table 't0': weights are float\[5\], wanted float for 6 ids"),
        ({"weights": [np.ones(6)]}, r"table 't0': weights are double\[6\], wanted float for 6 ids"),
        ({"rows": np.float32(1)}, "scalar|rank 0|at least rank 1"),
        ({"rows": np.ones([ROWS, DIM], np.int32)}, "'T' of int32 is not in the list of allowed values"),
        ({"tables": ["a", "b"]}, "N = 1, but 1 combiners, 2 tables"),
        ({"combiner": "max"}, "max"),
    ],
)
def test_wrong_inputs_are_refused(changes, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        pool(**{"rows": VALUES.astype(np.float32), **changes})


def test_a_gradient_of_another_shape_is_refused():
    for shape in ([len(LENGTHS) + 1, DIM], [len(LENGTHS), DIM + 1]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"table 't0': gradient: got shape .*, wanted \[4,3\]"):
            pool_gradient(np.zeros(shape, np.float32))
    for changes in ({"shape": [-1, DIM]}, {"places": [9] * 6}, {"splits": [0, 1]}):
        with pytest.raises(tf.errors.InvalidArgumentError):
            pool_gradient(np.zeros([len(LENGTHS), DIM], np.float32), **changes)


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("batch", [None, 4, 9])
def test_splits_are_the_counts_of_a_sparse_tensors_rows(columns, batch):
    indices = np.zeros([len(PLACES), columns], np.int64)
    indices[:, 0] = EXAMPLES
    splits, problem = ops.lockstep_splits(indices, [] if batch is None else [batch], table="user")
    np.testing.assert_array_equal(splits, np.append(0, np.cumsum(np.bincount(EXAMPLES, minlength=batch or 4))))
    assert problem.numpy() == b""


def test_no_ids_have_splits_of_zeros():
    for batch, wanted in ((None, [0]), (3, [0, 0, 0, 0])):
        none = np.zeros([0, 2], np.int64)
        splits, _ = ops.lockstep_splits(none, [] if batch is None else [batch], table="user")
        assert splits.numpy().tolist() == wanted


@pytest.mark.parametrize(
    ("indices", "batch", "message"),
    [
        ([[1, 0], [0, 0]], [], "id 1 belongs to example 0, but the id before it to example 1"),
        ([[0, 0], [4, 0]], [4], r"id 1 belongs to example 4, wanted one in \[0, 4\)"),
        ([[-1, 0]], [4], r"id 0 belongs to example -1, wanted one in \[0, 4\)"),
        ([[0, 0], [1 << 40, 0]], [], r"got 1099511627776 examples, wanted \[0, 2\^27\]"),
        ([[0, 0]], [-1], r"got -1 examples, wanted \[0, 2\^27\]"),
        ([0, 1], [], r"got indices of shape \[2\], wanted \[ids, 2\]"),
        ([[0, 0]], [[1, 1]], r"batch has shape \[2\], wanted a scalar"),
    ],
)
def test_wrong_indices_are_refused_or_reported_to_the_route(indices, batch, message):
    given = tf.constant(indices, tf.int64), [tf.constant(one, tf.int64) for one in batch]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"table 'user': {message}"):
        ops.lockstep_splits(*given, table="user")
    splits, problem = ops.lockstep_splits(*given, table="user", defers=True)
    assert not splits.numpy().any()
    assert re.match(f"table 'user': {message}", problem.numpy().decode())
