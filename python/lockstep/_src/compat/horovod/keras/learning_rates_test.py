"""Learning rates that callbacks set, on two workers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.keras as hvd
import horovod.tensorflow as hvd_tf
from lockstep.testing import reported_by_case, run_cases

pytestmark = pytest.mark.workers

KERAS3 = int(keras.__version__.partition(".")[0]) >= 3
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer if KERAS3 else keras.mixed_precision.LossScaleOptimizer


def line(optimizer):
    """Returns a model y = w x that begins with w = 1."""
    model = keras.Sequential(
        [keras.layers.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    model.compile(optimizer, keras.losses.MeanSquaredError())
    return model


# On workers.


class Rates(keras.callbacks.Callback):
    """Notes the learning rate of each batch."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(tf.convert_to_tensor(self.model.optimizer.learning_rate)))


def rates_of(callback, epochs, optimizer=None):
    noted = Rates()
    model = line(optimizer or hvd.DistributedOptimizer(keras.optimizers.SGD(7.0)))
    logs = model.fit(
        np.zeros([2, 1]), np.zeros([2, 1]), batch_size=1, epochs=epochs, callbacks=[callback, noted], verbose=0
    ).history
    assert logs["lr"][-1] == pytest.approx(noted.rates[-1])
    return noted.rates


def learning_rates():
    callbacks = hvd.callbacks
    schedule = callbacks.LearningRateScheduleCallback(8.0, 0.5, start_epoch=1, end_epoch=3)
    np.testing.assert_allclose(rates_of(schedule, 4), [7, 7, 8, 8, 4, 4, 4, 4])
    smooth = callbacks.LearningRateScheduleCallback(8.0, lambda epoch: epoch + 1, staircase=False)
    np.testing.assert_allclose(rates_of(smooth, 2), [8, 12, 16, 20])
    warmup = callbacks.LearningRateWarmupCallback(8.0, warmup_epochs=2, verbose=1)
    np.testing.assert_allclose(rates_of(warmup, 3), [5, 6, 7, 8, 8, 8])
    if not KERAS3:
        warmup = callbacks.LearningRateWarmupCallback(8.0, warmup_epochs=1)
        legacy = hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(7.0, momentum=0.5))
        np.testing.assert_allclose(rates_of(warmup, 1, legacy), [6, 8])
    with pytest.raises(ValueError, match="initial_lr"):
        callbacks.LearningRateScheduleCallback(None, 1.0)
    generator = ((np.zeros([1, 1]), np.zeros([1, 1])) for _ in range(2))
    with pytest.raises(ValueError, match="pass steps_per_epoch"):
        line(keras.optimizers.SGD(1.0)).fit(generator, callbacks=[callbacks.LearningRateWarmupCallback(1.0)], verbose=0)


def momentum_correction():
    """Checks that the sums of former steps are multiplied by new over old rate."""
    x = np.array([[1.0], [1.0]], np.float32)
    model = line(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5)))
    callback = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: [1.0, 0.5][epoch])
    model.fit(x, 0 * x, batch_size=2, epochs=2, callbacks=[callback], verbose=0)
    w, v = 1.0, 0.0
    for rate, correction in ((0.1, 1.0), (0.05, 0.5)):
        v = 0.5 * v * correction - rate * 2 * w
        w += v
    np.testing.assert_allclose(model.get_weights()[0], [[w]], rtol=1e-6)


def rates_of_others():
    """Checks that an optimizer's own schedule cannot be set, while a rate in a LossScaleOptimizer can."""
    decay = keras.optimizers.schedules.ExponentialDecay(1.0, 10, 0.5)
    makes = [keras.optimizers.SGD] if KERAS3 else [keras.optimizers.SGD, keras.optimizers.legacy.SGD]
    for make in makes:
        for wrap in (hvd.DistributedOptimizer, lambda o: hvd.DistributedOptimizer(LossScaleOptimizer(o))):
            for callback in (
                hvd.callbacks.LearningRateWarmupCallback(1.0, steps_per_epoch=1),
                hvd.callbacks.LearningRateScheduleCallback(1.0, 0.5),
            ):
                with pytest.raises(ValueError, match=f"{type(callback).__name__}: the optimizer's learning rate"):
                    line(wrap(make(decay))).fit(np.ones([1, 1]), np.ones([1, 1]), callbacks=[callback], verbose=0)
        optimizer = hvd.DistributedOptimizer(LossScaleOptimizer(make(7.0)))
        warmup = hvd.callbacks.LearningRateWarmupCallback(8.0, warmup_epochs=1)
        np.testing.assert_allclose(rates_of(warmup, 1, optimizer), [6, 8])


CASES = [learning_rates, momentum_correction, rates_of_others]


def all_cases():
    hvd.init()
    run_cases(CASES, lambda name: hvd_tf.barrier(name=name))
    hvd.shutdown()


test_learning_rates_on_two_workers = reported_by_case(all_cases, CASES, 2, timeout_s=120)
