"""Symbols that a job of Horovod's replaces, until `hvd.shutdown()`."""

import keras
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
from lockstep.testing import call_workers
from lockstep.testing.replaced import HAS_KERAS_3, Snapshot

pytestmark = pytest.mark.workers

AS_LISTED = [], []


def _train_step():
    """Uses what replaces symbols: an optimizer and a tape that exchange gradients."""
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1))
    weight = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * weight)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
    keras.optimizers.SGD(0.1).apply_gradients(zip(gradients, [weight], strict=True))
    return optimizer, weight.numpy().tolist()


def _start_and_leave_twice():
    keras.Model, tf.compat.v1.keras.models.Model  # noqa: B018  loads modules that are loaded lazily
    hvd.init()
    hvd.shutdown()
    before = Snapshot()
    hvd.init()
    at_first, _ = before.differences()
    optimizer, trained = _train_step()
    in_job = before.differences("job", "named job")
    hvd.shutdown()
    after = before.replaced()
    hvd.init()
    again = before.differences("job", "named job")
    if HAS_KERAS_3:
        assert optimizer.variables() == optimizer.variables
        assert keras.optimizers.SGD().variables() == keras.optimizers.SGD().variables
    hvd.shutdown()
    return len(at_first), trained, in_job, after, again, before.replaced()


def test_a_job_replaces_what_the_table_lists_until_it_is_left():
    for at_first, trained, in_job, after, again, at_last in call_workers(_start_and_leave_twice, 2, timeout_s=120):
        # Three for errors' texts, two of savers, and one that asks for custom devices.
        assert at_first == 6
        assert trained == pytest.approx([0.8])
        assert in_job == AS_LISTED == again
        assert after == {} == at_last
