"""Tests that a dynamic table gives the results of a plain variable, and keeps keys as its options say."""

from __future__ import annotations

import functools
import time

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.scope import scope
from lockstep._src.tables import dynamic as embedding
from lockstep._src.tables.dynamic import EmbeddingVariableOption, get_embedding_variable
from lockstep.testing.tables import remove

v1 = tf.compat.v1
train = v1.train
ROWS, DIM = 40, 5
MATRIX = np.random.RandomState(0).randn(ROWS, DIM).astype(np.float32)
# Keys that are larger than the number of rows of any matrix.
KEYS = np.random.RandomState(1).randint(-(2**62), 2**62, ROWS)


def run(values, *steps):
    """Runs graph operations in a session of their graph, with fresh variables."""
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return values(session, *steps)


@pytest.mark.parametrize("in_function", [False, True], ids=["tape", "function"])
def test_gradients_of_a_tape_and_of_a_function(in_function):
    table = get_embedding_variable("eager", DIM, initializer=0.0)
    table.insert(KEYS, MATRIX)
    keys = tf.constant(KEYS[[3, 7, 3]])

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, keys) ** 2)
        return tape.gradient(loss, table)

    slices = tf.function(gradient)() if in_function else gradient()
    # A gradient has one slice for each row.
    np.testing.assert_allclose(slices.values, [4 * MATRIX[3], 2 * MATRIX[7]])
    assert slices.indices[0] != slices.indices[1]
    train.GradientDescentOptimizer(0.5).apply_gradients([(slices, table)])
    np.testing.assert_allclose(table.sparse_read(KEYS[[3, 7]]), [-MATRIX[3], 0 * MATRIX[7]], atol=1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    ("look_up", "has_negative_keys"),
    [(tf.nn.embedding_lookup_sparse, True), (tf.nn.safe_embedding_lookup_sparse, False)],
    ids=["lookup", "safe lookup"],
)
def test_sparse_lookups_are_those_of_a_variable(combiner, weighted, look_up, has_negative_keys):
    places = np.array([[0, 0], [0, 1], [0, 2], [2, 0], [2, 1]])
    numbers = np.array([4, 9, 4, 1, 30])
    weights = tf.SparseTensor(places, np.arange(1, 6, dtype=np.float32), [3, 3]) if weighted else None
    table = get_embedding_variable("table", DIM, initializer=0.0)
    keys = KEYS if has_negative_keys else np.abs(KEYS)
    table.insert(keys, MATRIX)
    got = look_up(table, tf.SparseTensor(places, keys[numbers], [3, 3]), weights, combiner=combiner)
    wanted = look_up(tf.constant(MATRIX), tf.SparseTensor(places, numbers, [3, 3]), weights, combiner=combiner)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "filter_option", [embedding.CounterFilter(3), embedding.CBFFilter(3, 1000, 0.01)], ids=["counter", "Bloom filter"]
)
def test_keys_are_taken_in_when_they_have_been_seen_often_enough(filter_option):
    option = EmbeddingVariableOption(
        filter_option=filter_option,
        init_option=embedding.InitializerOption(1.0, default_value_no_permission=-7.0),
        record_frequency=True,
    )
    table = get_embedding_variable("table", 2, ev_option=option)
    with tf.GradientTape() as tape:
        rows = table.sparse_read([5, 5, 6])
        loss = tf.reduce_sum(rows)
    np.testing.assert_array_equal(rows, np.full([3, 2], -7.0))
    slices = tape.gradient(loss, table)
    # Keys that are not admitted have no gradient that could count in a norm.
    np.testing.assert_array_equal(slices.indices, [-1])
    np.testing.assert_array_equal(slices.values, np.zeros([1, 2]))
    np.testing.assert_array_equal(table.sparse_read([5, 6]), [[1, 1], [-7, -7]])
    assert int(table.total_count()) == 1
    np.testing.assert_array_equal(table.get_frequency([5, 6, 7]), [3, 2, 0])


def in_steps(option, batches, dim=2, initializer=1.0):
    """Returns the keys of a table after training on batches of keys, step by step."""
    with tf.Graph().as_default():
        table = get_embedding_variable("table", dim, initializer=initializer, ev_option=option)
        keys = v1.placeholder(tf.int64, [None])
        step = train.get_or_create_global_step()
        op = train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.nn.embedding_lookup(table, keys)), step)
        exported = table.export()

        def values(session):
            for batch in batches:
                if callable(batch):
                    batch()
                else:
                    session.run(op, {keys: batch})
            return session.run(exported)

        return run(values)


def test_keys_go_that_were_not_seen_for_some_steps():
    option = EmbeddingVariableOption(evict_option=embedding.GlobalStepEvict(2))
    after = in_steps(option, [[1, 2], [1, 3], [1], [1], [1, 4]])
    np.testing.assert_array_equal(after.keys, [1, 4])
    np.testing.assert_array_equal(after.versions, [4, 4])


def test_keys_go_that_were_not_seen_for_some_time():
    option = EmbeddingVariableOption(evict_option=embedding.TimeEvict(1))
    after = in_steps(option, [[1, 2], lambda: time.sleep(2.1), [3]])
    np.testing.assert_array_equal(after.keys, [3])


def test_keys_go_whose_rows_are_small():
    option = EmbeddingVariableOption(evict_option=embedding.L2WeightEvict(1.0))
    # The keys of a step stay until the end of the next step.
    after = in_steps(option, [[1, 2]] * 9)
    np.testing.assert_array_equal(after.keys, [1, 2])
    assert np.all(np.linalg.norm(after.values, axis=1) < 1.0)
    after = in_steps(option, [*[[1, 2]] * 9, [3]])
    np.testing.assert_array_equal(after.keys, [3])


@pytest.mark.parametrize(
    ("strategy", "stays"), [(embedding.CacheStrategy.LRU, [5, 6]), (embedding.CacheStrategy.LFU, [1, 6])], ids=str
)
def test_keys_go_that_exceed_the_budget(strategy, stays):
    option = EmbeddingVariableOption(evict_option=[embedding.BudgetEvict(max_keys=2, cache_strategy=strategy)])
    after = in_steps(option, [[1], [1], [1, 1], [4], [5, 5], [6, 6, 6]])
    np.testing.assert_array_equal(after.keys, stays)


DEFAULT_ROWS = {
    "drawn rows": (0.0, {}),
    "an option": (0.5, {"init_option": embedding.InitializerOption(default_value_no_permission=0.5)}),
    "a constant": (1.5, {"init_option": embedding.InitializerOption(1.5)}),
    "a filter": (
        0.5,
        {
            "filter_option": embedding.CounterFilter(2),
            "init_option": embedding.InitializerOption(1.5, default_value_no_permission=0.5),
        },
    ),
}


@pytest.mark.pairwise
@pytest.mark.parametrize("key_dtype", [tf.int64, tf.string])
@pytest.mark.parametrize("where", DEFAULT_ROWS)
@pytest.mark.parametrize(
    "evaluating",
    [embedding.evaluating, *(functools.partial(scope, mode=mode) for mode in ("eval", "infer"))],
    ids=["evaluating", "eval", "infer"],
)
def test_evaluation_leaves_no_trace_and_gives_keys_without_a_row_one_default(where, key_dtype, evaluating):
    default, options = DEFAULT_ROWS[where]
    seen, mixed, both = (tf.cast(keys, tf.int64) for keys in ([1, 2, 2], [2, 3], [1, 2]))
    if key_dtype == tf.string:
        seen, mixed, both = (tf.strings.as_string(keys) for keys in (seen, mixed, both))
    option = EmbeddingVariableOption(**options)
    table = get_embedding_variable("table", DIM, key_dtype, ev_option=option)
    trained = table.sparse_read(seen)
    count = int(table.total_count())
    with evaluating():
        np.testing.assert_array_equal(table.sparse_read(mixed), [trained[1], [default] * DIM])
        pooled = tf.nn.embedding_lookup_sparse(table, tf.sparse.from_dense([mixed]), None, combiner="sum")
        np.testing.assert_array_equal(pooled, [trained[1] + default])
    assert table.default_value == default
    assert int(table.total_count()) == count
    remove(table, both)
    with embedding.evaluating():
        np.testing.assert_array_equal(table.sparse_read(both), np.full([2, DIM], default))


def test_strings_are_keys():
    option = EmbeddingVariableOption(record_frequency=True)
    table = get_embedding_variable("table", 3, key_dtype=tf.string, initializer=2.0, ev_option=option)
    table.sparse_read([["a", "b"], ["a", ""]])
    exported = table.export()
    assert sorted(exported.keys.numpy()) == [b"", b"a", b"b"]
    np.testing.assert_array_equal(table.get_frequency(["a", "c"]), [2, 0])
    assert int(remove(table, ["a"])) == 1
    assert int(table.total_count()) == 2


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_rows_of_16_bits(dtype):
    table = get_embedding_variable("table", DIM, value_dtype=dtype, initializer=0.0)
    table.insert(KEYS, MATRIX)
    with tf.GradientTape() as tape:
        rows = tf.nn.embedding_lookup(table, KEYS)
        loss = tf.reduce_sum(tf.cast(rows, tf.float32))
    assert rows.dtype == dtype
    np.testing.assert_array_equal(rows, tf.cast(MATRIX, dtype))
    train.GradientDescentOptimizer(0.5).apply_gradients([(tape.gradient(loss, table), table)])
    after = tf.cast(table.sparse_read(KEYS), tf.float32)
    np.testing.assert_allclose(after, MATRIX - 0.5, atol=0.05)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda table: table.sparse_read(["a"]), TypeError, r"'table'.*string.*int64"),
        (tf.convert_to_tensor, NotImplementedError, "'table' is dynamic and does not support value"),
        (lambda table: table.assign(MATRIX), NotImplementedError, "insert"),
        (
            lambda table: table.insert(KEYS, MATRIX[:, :4]),
            tf.errors.InvalidArgumentError,
            r"\[40,4\], wanted \[40,5\]",
        ),
        (
            lambda table: table.get_frequency([1]),
            tf.errors.FailedPreconditionError,
            "frequencies are not recorded",
        ),
    ],
    ids=["other keys", "value", "assignment", "other rows", "frequencies"],
)
def test_what_a_table_cannot_do_is_an_error_that_says_so(call, error, message):
    table = get_embedding_variable("table", DIM)
    with pytest.raises(error, match=message):
        call(table)


def test_a_table_that_has_not_been_initialized_is_an_error_that_names_it():
    with tf.Graph().as_default(), v1.Session() as session:
        rows = get_embedding_variable("graphs", DIM).sparse_read([1])
        with pytest.raises(tf.errors.FailedPreconditionError, match="'graphs' has not been initialized"):
            session.run(rows)
