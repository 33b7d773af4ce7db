"""Tests of LockstepSplit, which cuts the gradients of concatenated features."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine import library
from lockstep._src.scope import embedding_scope, scope

tf1 = tf.compat.v1


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "sizes", "axis"),
    [
        ([5, 9], [2, 0, 7], 1),
        ([5, 9], [2, -1, 3], -1),
        ([5, 9], [1, 4], 0),
        ([9], [4, 5], 0),
        ([2, 3, 4, 5], [1, 2, 1], 2),
        ([0, 4], [1, 3], 1),
        ([4, 0], [0, 0], 1),
        ([3000, 40], [16, 16, 8], 1),
    ],
)
def test_parts_are_those_of_tensorflow(shape, sizes, axis, dtype):
    value = tf.cast(np.random.default_rng(3).normal(size=shape), dtype)
    for size_type in (tf.int32, tf.int64):
        found = library.ops.lockstep_split(value, tf.constant(sizes, size_type), axis, num_split=len(sizes))
        wanted = tf.split(value, sizes, axis)
        for mine, own in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(tf.cast(mine, tf.float64), tf.cast(own, tf.float64))


@pytest.mark.parametrize(
    ("sizes", "axis", "message"),
    [
        ([2, 2], 1, r"size_splits is \[?2 2\]?, wanted 2 sizes that sum to 3"),
        ([4, -1], 1, "wanted 2 sizes that sum to 3"),
        ([3], 1, "wanted 2 sizes that sum to 3"),
        ([1, 2], 2, "split_dim is 2, wanted one of 2 dimensions"),
        ([1, 2], [0, 1], "split_dim has shape"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, axis, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        library.ops.lockstep_split(tf.zeros([2, 3]), tf.constant(sizes), axis, num_split=2)


def test_gradients_of_concatenated_features_are_split_by_this_operation():
    features, width = 20, 3  # from 17 parts on, TensorFlow's gradient has a SplitV

    def train(options, embedding):
        with tf.Graph().as_default(), scope(**options):
            with embedding():
                tables = [
                    tf1.get_variable(f"t{i}", initializer=np.arange(6.0 * width, dtype=np.float32).reshape(6, width))
                    for i in range(features)
                ]
            ids = tf.sparse.from_dense(tf.constant([[1, 2], [3, 0], [5, 5]], tf.int64))
            found = [tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum") for table in tables]
            weights = tf.constant(np.random.default_rng(1).normal(size=features * width), tf.float32)
            loss = tf.reduce_sum(tf.square(tf.concat(found, 1)) * weights)
            step = tf1.train.GradientDescentOptimizer(0.01).minimize(loss)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                metadata = tf1.RunMetadata()
                session.run(step, options=tf1.RunOptions(output_partition_graphs=True), run_metadata=metadata)
                ops = {node.op for graph in metadata.partition_graphs for node in graph.node}
                return ops, session.run([table.read_value() for table in tables])

    ops, fused = train({}, embedding_scope)
    assert "LockstepSplit" in ops and "SplitV" not in ops
    ops, plain = train({"fused_lookups": False}, embedding_scope)
    assert "SplitV" in ops, "graphs without pooled lookups do not change"
    np.testing.assert_allclose(fused, plain, rtol=1e-6)
