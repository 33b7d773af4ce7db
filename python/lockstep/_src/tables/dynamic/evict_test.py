"""Tests of evictions that a program asks for: which keys go, with which rows, and where the keys of a step stay."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import scope
from lockstep._src.tables import dynamic
from lockstep.testing import call_workers

v1 = tf.compat.v1
LRU, LFU = dynamic.CacheStrategy.LRU, dynamic.CacheStrategy.LFU


def table_of(max_keys, strategy=LRU, **arguments):
    option = dynamic.EmbeddingVariableOption(
        evict_option=dynamic.BudgetEvict(max_keys=max_keys, cache_strategy=strategy), **arguments.pop("options", {})
    )
    return dynamic.get_embedding_variable("table", 2, initializer=1.0, ev_option=option, **arguments)


def insert(table, keys, **counts):
    """Inserts keys; their rows show the numbers, or the lengths of strings."""
    values = [[len(key) if isinstance(key, bytes) else key] * 2 for key in keys]
    table.insert(tf.constant(keys, table.key_dtype), np.array(values, np.float32), **counts)


@pytest.mark.parametrize(
    ("strategy", "gone"),
    [(LRU, [20, 30]), (LFU, [10, 40])],
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_the_coldest_keys_go_with_their_rows(strategy, gone, dtype):
    table = table_of(3, strategy, value_dtype=dtype)
    insert(table, [10, 20, 30, 40, 50], versions=[4, 1, 2, 5, 6], freqs=[1, 5, 4, 2, 3])
    keys, rows = table.evict()
    np.testing.assert_array_equal(keys, gone)
    assert (keys.dtype, rows.dtype) == (tf.int64, tf.float32)
    np.testing.assert_array_equal(rows, [[key] * 2 for key in gone])
    np.testing.assert_array_equal(table.export().keys, sorted({10, 20, 30, 40, 50} - set(gone)))
    keys, rows = table.evict()
    assert (keys.shape, rows.shape) == ([0], [0, 2]), "the budget is kept"


def test_strings_go_with_their_keys():
    table = table_of(1, key_dtype=tf.string)
    insert(table, [b"a\0", b"", b"bcd"], versions=[1, 2, 3])
    keys, rows = table.evict()
    gone = dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))
    assert gone == {b"a\0": [2.0, 2.0], b"": [0.0, 0.0]}
    assert table.export().keys.numpy().tolist() == [b"bcd"]
    np.testing.assert_array_equal(table.sparse_read([b""]), [[1.0, 1.0]])


def test_keys_of_the_step_stay_until_the_end_of_the_next():
    table = table_of(2)
    table.sparse_read([1, 2, 3, 4])
    for key in (50, 60):
        insert(table, [key])
        keys, rows = table.evict()
        np.testing.assert_array_equal(keys, [key])
        np.testing.assert_array_equal(rows, [[key, key]])
        table.end_step()
    table.sparse_read([3, 4])
    table.end_step()
    np.testing.assert_array_equal(table.export().keys, [3, 4])


@pytest.mark.parametrize("option", [None, dynamic.GlobalStepEvict(3)])
def test_a_table_without_a_budget_evicts_nothing_on_demand(option):
    ev_option = dynamic.EmbeddingVariableOption(evict_option=option)
    table = dynamic.get_embedding_variable("user", 2, ev_option=ev_option)
    with pytest.raises(tf.errors.FailedPreconditionError, match="table 'user': got no budget to keep, wanted max_keys"):
        table.evict()


def read_and_evict():
    """Returns the keys and rows that each step evicts on this worker, and the rows left in the end."""
    context.ensure_initialized()
    with tf.Graph().as_default(), scope(), v1.Session() as session:
        table = table_of(4, options={"placement": dynamic.KeyPlacement("remainder")})
        keys = v1.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, keys))
        step = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
        with tf.control_dependencies([loss]):
            evicted = table.evict()
        session.run(v1.global_variables_initializer())
        found = []
        for i in range(6):
            found.append(session.run([evicted, step], {keys: np.arange(10 * i, 10 * i + 6)})[0])
        return found, session.run(table.export())


@pytest.mark.workers
def test_each_worker_evicts_its_own_keys_with_the_rows_that_they_had():
    for rank, (found, exported) in enumerate(call_workers(read_and_evict, 2)):
        keys = np.concatenate([keys for keys, _ in found])
        rows = np.concatenate([rows for _, rows in found])
        assert np.all(keys % 2 == rank) and len(np.unique(keys)) == len(keys)
        # Both workers look up each key once; the gradient is the mean over them.
        np.testing.assert_array_equal(rows, np.zeros_like(rows))
        assert not set(keys) & set(exported.keys)
