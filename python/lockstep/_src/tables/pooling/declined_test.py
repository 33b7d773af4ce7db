"""Errors in the data of one worker: all workers raise them, and the job continues."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables.dynamic import get_embedding_variable
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

DIM, BAD_RANK = 3, 1
TWO_STAGES = {"HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP": "1"}


def _sparse(values: tf.Tensor, examples: list[int]) -> tf.SparseTensor:
    return tf.SparseTensor([[example, 0] for example in examples], values, [4, 1])


def _calls(table, values):
    """Yields for each error: its message, the lookup on the worker that has it, and the lookup of the others."""
    weights = tf.ones([2])
    good = _sparse(values, [0, 2])
    wild = tf.SparseTensor([[0, 0], [(1 << 31) - 1, 0]], values, [4, 1])
    short = tf.RaggedTensor.from_row_splits(values, tf.constant([0, 1, 3], tf.int64), validate=False)
    whole = tf.RaggedTensor.from_row_splits(values, tf.constant([0, 1, 2], tf.int64))
    plain, safe = tf.nn.embedding_lookup_sparse, tf.nn.safe_embedding_lookup_sparse
    for lookup in (plain, safe):
        few = tf.RaggedTensor.from_row_lengths(weights[:1], [1, 0])
        yield "ids have to be sorted by example", lookup, (_sparse(values, [2, 0]),), (good,)
        yield "wanted 0 and the number of ids, 2", lookup, (short,), (whole,)
        yield "got 1 weights for 2 ids", lookup, (whole, few), (whole, whole.with_values(weights))
    yield "got 2147483647 examples, wanted", plain, (wild,), (good,)


def _lookup_in(table, lookup):
    def look_up(given):
        weights = given[1] if len(given) > 1 else None
        return lookup(table, given[0], weights, combiner="sum")

    return look_up


def errors_reach_all_workers() -> None:
    context.ensure_initialized()
    is_bad = context.rank == BAD_RANK
    numbers, words = tf.constant([1, 2], tf.int64), tf.constant(["a", "b"])
    with scope():
        with embedding_scope():
            static = tf.Variable(tf.ones([50, DIM]), name="static")
        tables = [(static, "static", numbers)]
        for key_dtype, values in ((tf.int64, numbers), (tf.string, words)):
            name = f"dynamic_{key_dtype.name}"
            tables.append((get_embedding_variable(name, DIM, key_dtype, initializer=1.0), name, values))
        for table, name, values in tables:
            for message, lookup, bad, good in _calls(table, values):
                look_up = _lookup_in(table, lookup)
                for call in (look_up, tf.function(look_up)):
                    try:
                        call(bad if is_bad else good)
                    except tf.errors.InvalidArgumentError as error:
                        wanted = f"rank {BAD_RANK}: table '{name}': "
                        assert error.message.startswith(wanted) and message in error.message, error.message
                    else:
                        raise AssertionError(f"no error: {name}, {message}")
                    np.testing.assert_array_equal(tf.reduce_sum(call(good)), 2 * DIM)


def test_an_error_of_one_worker_is_raised_on_all_and_the_job_goes_on():
    call_workers(errors_reach_all_workers, 3, hosts="aab", environment=TWO_STAGES, timeout_s=120)
