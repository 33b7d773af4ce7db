"""Tests that batch statistics cover the rows of all workers, and that batches without rows do not count."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.training import moving_averages

from lockstep._src.engine.context import context
from lockstep._src.graph import row_weights
from lockstep._src.scope import scope
from lockstep.testing import call_workers

v1 = tf.compat.v1
BATCH = np.random.RandomState(0).randn(7, 2, 3, 4).astype(np.float32) + 100.0
# The rows of each worker: unequal parts, one without rows.
PARTS = [BATCH[:5], BATCH[5:], BATCH[:0]]


def moments_of(x):
    """Returns mean, variance, and the gradient of a function of both, over the batches of all workers."""
    fed = tf.convert_to_tensor(x)
    mean, variance = tf.nn.moments(fed, [0, 1, 2])
    kept, _ = v1.nn.moments(fed, axes=[0, -1], keep_dims=True)
    loss = tf.reduce_sum(tf.sin(mean)) + tf.reduce_sum(tf.sin(variance))
    return mean, variance, kept, tf.gradients(loss, fed)[0]


def normalized(x, **arguments):
    """Returns the results of fused batch normalization."""
    scale, offset = tf.constant([1.0, 2.0, 3.0, 4.0]), tf.constant([0.5, 0.0, -0.5, 1.0])
    return v1.nn.fused_batch_norm(tf.convert_to_tensor(x), scale, offset, epsilon=0.01, **arguments)


def averaged(x):
    """Returns the results of fused batch normalization that continues moving averages."""
    averages = {"mean": tf.fill([4], 3.0), "variance": tf.fill([4], 5.0)}
    return normalized(x, exponential_avg_factor=0.25, **averages)


def on_worker():
    context.ensure_initialized()
    with tf.Graph().as_default(), scope(), v1.Session() as session:
        x = PARTS[context.rank]
        return session.run([moments_of(x), normalized(x), averaged(x)])


@functools.cache
def workers():
    return call_workers(on_worker, len(PARTS), timeout_s=120)


@functools.cache
def expected():
    """Returns what plain TensorFlow computes of the whole batch; the gradient is of one loss for each worker."""
    with tf.Graph().as_default(), v1.Session() as session:
        mean, variance, kept, gradient = moments_of(BATCH.astype(np.float64))
        moments = mean, variance, kept, gradient * len(PARTS)
        fused = normalized(BATCH), averaged(BATCH)
        return session.run([moments, *fused])


@pytest.mark.workers
@pytest.mark.parametrize("place", range(3), ids=["mean", "variance", "kept axes"])
def test_moments_are_those_of_all_workers_rows(place):
    for moments, *_ in workers():
        np.testing.assert_allclose(moments[place], expected()[0][place], rtol=1e-4)


@pytest.mark.workers
def test_gradients_of_moments_reach_the_rows_of_each_worker():
    got = np.concatenate([moments[3] for moments, *_ in workers()])
    np.testing.assert_allclose(got, expected()[0][3], rtol=1e-2, atol=1e-5)


@pytest.mark.workers
@pytest.mark.parametrize("moving", [False, True], ids=["moments of the batch", "moving averages"])
def test_fused_normalization_is_that_of_all_workers_rows(moving):
    y, mean, variance = expected()[1 + moving]
    np.testing.assert_allclose(np.concatenate([each[1 + moving][0] for each in workers()]), y, rtol=1e-3, atol=1e-3)
    for each in workers():
        np.testing.assert_allclose(each[1 + moving][1], mean, rtol=1e-4)
        np.testing.assert_allclose(each[1 + moving][2], variance, rtol=1e-3)


@pytest.fixture(name="session")
def _session():
    """Enters the scope of a step with two batches on one worker, whose batches may be empty."""
    with tf.Graph().as_default(), scope(data_batch_count=2, data_sync_drop_remainder=False), v1.Session() as session:
        yield session


@pytest.mark.parametrize("axes", [[0], [0, 1], [0, 1, 2, 3], [-4, 2]], ids=str)
@pytest.mark.parametrize("keeps", [False, True], ids=["squeezed", "kept"])
def test_one_workers_moments_are_those_of_numpy(session, axes, keeps):
    mean, variance = session.run(tf.nn.moments(tf.constant(BATCH), axes, keepdims=keeps))
    wide = BATCH.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean(tuple(axes), keepdims=keeps), rtol=1e-5)
    np.testing.assert_allclose(variance, wide.var(tuple(axes), keepdims=keeps), rtol=1e-3)


def test_moments_without_rows_are_zero(session):
    for moment in session.run(tf.nn.moments(tf.constant(BATCH[:0]), [0])):
        np.testing.assert_array_equal(moment, np.zeros(BATCH.shape[1:]))


def test_moments_of_16_bits_are_computed_in_32(session):
    x = tf.cast(tf.constant(BATCH), tf.float16)
    mean, variance = tf.nn.moments(x, [0, 1, 2])
    assert mean.dtype == variance.dtype == tf.float16
    wide = session.run(x).astype(np.float64)
    np.testing.assert_allclose(session.run(mean), wide.mean((0, 1, 2)), rtol=1e-3)
    np.testing.assert_allclose(session.run(variance), wide.var((0, 1, 2)), rtol=1e-2)


def exchanges():
    return [op.type for op in v1.get_default_graph().get_operations() if op.type.startswith("Lockstep")]


def evaluated():
    with scope(mode="eval"):
        return tf.nn.moments(tf.constant(BATCH), [0])


def dropping():
    with scope(data_sync_drop_remainder=True):
        return tf.nn.moments(tf.constant(BATCH), [0])


STAY = {
    "other axes": lambda: tf.nn.moments(tf.constant(BATCH), [1, -1]),
    "evaluation": evaluated,
    "no remainder": dropping,
    "no training": lambda: normalized(BATCH, is_training=False, mean=tf.ones([4]), variance=tf.ones([4]))[:1],
}


@pytest.mark.parametrize("name", STAY)
def test_other_statistics_are_not_exchanged(session, name):
    got = session.run(STAY[name]())
    assert not exchanges()
    with tf.Graph().as_default(), v1.Session() as plain, scope(mode="infer"):
        for value, wanted in zip(got, plain.run(STAY[name]()), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-6)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_the_channel_may_be_anywhere(session, layout):
    x = BATCH if layout == "NHWC" else BATCH.transpose(0, 3, 1, 2)
    y, mean, variance = session.run(normalized(x, data_format=layout))
    y = y if layout == "NHWC" else y.transpose(0, 2, 3, 1)
    for got, wanted in zip((y, mean, variance), expected()[1], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


def test_moving_averages_take_the_batches_of_a_step_in_turn_and_skip_empty_ones(session, monkeypatch):
    rows = [3, 0, 2]
    values = [tf.constant(value) for value in (1.0, np.nan, 5.0)]
    weights = {
        id(value): row_weights.RowWeight(*[tf.constant(count, tf.int64)] * 2)
        for value, count in zip(values, rows, strict=True)
    }
    monkeypatch.setattr(row_weights, "of", lambda of: weights.get(id(of[0])))
    average = v1.get_variable("average", initializer=2.0, use_resource=True)
    moved = [moving_averages.assign_moving_average(average, value, 0.75, zero_debias=False) for value in values]
    session.run(v1.global_variables_initializer())
    session.run(moved)
    wanted = 2.0
    for value in (1.0, 5.0):
        wanted -= (wanted - value) * 0.25
    assert session.run(average) == pytest.approx(wanted)
