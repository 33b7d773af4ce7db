"""Keras' callbacks on two workers."""

from __future__ import annotations

import functools
import resource
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.keras as hvd
import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd_tf_keras
from lockstep.testing import call_workers, run_cases

KERAS3 = int(keras.__version__.partition(".")[0]) >= 3
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer if KERAS3 else keras.mixed_precision.LossScaleOptimizer


def line(optimizer):
    """Returns a model y = w x that begins with w = 1."""
    model = keras.Sequential(
        [keras.layers.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    model.compile(optimizer, keras.losses.MeanSquaredError())
    return model


class Alike(keras.Model):
    """Three layers whose weights have one name, as those of a network's copies."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(1, use_bias=False, name="alike") for _ in range(3)]
        for part in self.parts:
            part.build((None, 1))


# On workers.


def broadcasts():
    """Checks that each rank keeps its own first layer and the optimizer's state for it."""
    model = keras.Sequential(
        [keras.layers.Input([1])]
        + [
            keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(1.0 + hvd.rank()))
            for _ in range(3)
        ]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0, momentum=0.5))
    own = model.layers[0].trainable_weights[0]
    optimizer.register_local_var(own)
    model.compile(optimizer, keras.losses.MeanSquaredError())
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=own)
    optimizer.build(model.trainable_variables)
    for i, slot in enumerate(optimizer.momentums):
        slot.assign([[10.0 * (1 + hvd.rank()) + i]])
    model.fit(np.zeros([1, 1]), np.zeros([1, 1]), callbacks=[callback], verbose=0)
    # Each moved by half of its momentum in the step.
    np.testing.assert_allclose(np.ravel(model.get_weights()), [6.0 * (1 + hvd.rank()), 2 + 10.5, 2 + 11])
    np.testing.assert_allclose(float(optimizer.momentums[0][0][0]), 5.0 * (1 + hvd.rank()))
    np.testing.assert_allclose([float(m[0][0]) for m in optimizer.momentums[1:]], [10.5, 11])
    with pytest.raises(ValueError, match="tf.Variable"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[3])


def variables_called_alike():
    """Checks that order, not names, tells the local ones apart, with several slots each."""
    for make, slots_of in (
        (functools.partial(keras.optimizers.SGD, 0.0, momentum=0.5), 1),
        (functools.partial(keras.optimizers.Adam, 0.0), 2),
    ):
        for place in (0, 1, 2):
            model = Alike()
            weights = model.trainable_weights
            assert len({getattr(w, "path", w.name) for w in weights}) == 1
            optimizer = hvd.DistributedOptimizer(make())
            optimizer.register_local_var(weights[place])
            model.compile(optimizer, keras.losses.MeanSquaredError())
            optimizer.build(weights)
            callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=weights[place])
            callback.set_model(model)
            slots = [v for v in optimizer.variables if tuple(v.shape) == (1, 1)]
            assert len(slots) == 3 * slots_of
            for i, slot in enumerate(slots):
                slot.assign([[100.0 * hvd.rank() + i]])
            callback.on_batch_end(0)
            kinds = [optimizer.momentums] if slots_of == 1 else [optimizer._momentums, optimizer._velocities]
            got = [np.ravel([np.asarray(slot) for slot in each]) for each in zip(*kinds, strict=True)]
            for i, values in enumerate(got):
                assert (values >= 100).all() == (i != place or hvd.rank() == 1), (place, got)


def averages():
    logs = {"loss": 1.0 + hvd.rank(), "accuracy": np.float32(hvd.rank())}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs == {"loss": 1.5, "accuracy": 0.5}
    logs = {"of each class": np.array([hvd.rank(), 4.0])}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    np.testing.assert_allclose(logs["of each class"], [0.5, 4.0])
    with pytest.raises(ValueError, match=r"rank 0 has the metrics \['a'\], rank 1 \['b'\]"):
        hvd_tf_keras.callbacks.MetricAverageCallback().on_epoch_end(0, {"ab"[hvd.rank()]: 1.0})


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
    with pytest.raises(ValueError, match="give steps_per_epoch"):
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


def scales_are_broadcast():
    makes = [keras.optimizers.SGD] if KERAS3 else [keras.optimizers.SGD, keras.optimizers.legacy.SGD]
    for make in makes:
        # The scale of a model that one rank has loaded.
        optimizer = hvd.DistributedOptimizer(LossScaleOptimizer(make(0.1), initial_scale=2.0 ** (2 + hvd.rank())))
        model = line(optimizer)
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
        model.fit(np.zeros([1, 1]), np.zeros([1, 1]), callbacks=[callback], verbose=0)
        assert float(tf.convert_to_tensor(optimizer.dynamic_scale if KERAS3 else optimizer.loss_scale)) == 8.0


def best_models():
    """Checks that rank 0 saves, to one file."""
    folder = Path(hvd_tf.broadcast_object(tempfile.mkdtemp()))
    for module, weights_only in ((hvd, False), (hvd_tf_keras, True)):
        if weights_only and KERAS3 and tf.keras.Model is not keras.Model:
            continue
        callback = module.callbacks.BestModelCheckpoint(monitor="loss", save_weights_only=weights_only)
        model = line(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
        with pytest.raises(ValueError, match="filepath"):
            model.fit(np.ones([1, 1]), np.zeros([1, 1]), callbacks=[callback], verbose=0)
        name = "best.weights.h5" if weights_only else "best.keras"
        callback.filepath = str(folder / str(hvd.rank()) / name)
        model.fit(np.ones([1, 1]), np.zeros([1, 1]), callbacks=[callback], verbose=0)
        best = model.get_weights()
        model.fit(np.ones([1, 1]), np.full([1, 1], 100.0), callbacks=[callback], verbose=0)
        assert np.abs(best[0] - model.get_weights()[0]).max() > 1
        hvd_tf.barrier()
        assert not (folder / "1" / name).exists()
        saved = line(keras.optimizers.SGD(0.1))
        if weights_only:
            saved.load_weights(folder / "0" / name)
        else:
            saved = keras.models.load_model(folder / "0" / name)
        np.testing.assert_allclose(saved.get_weights(), best)
    assert hvd.callbacks.BestModelCheckpoint("loss", 1, "max", 5).save_freq == 5
    assert hvd_tf_keras.callbacks.BestModelCheckpoint("loss", 1, True, "max", 5).save_weights_only


def errors_of_files():
    """Checks that a file that a callback cannot write is an error of `fit`, not the end of its data."""

    class Saves(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            tf.train.Checkpoint(v=tf.Variable(tf.zeros([20_000]))).save(f"{tempfile.mkdtemp()}/it")

    model = line(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        said = r"^a callback failed: /.*/it-1_temp/part-00000.*; File too large$"
        with pytest.raises(tf.errors.ResourceExhaustedError, match=said):
            model.fit(np.ones([4, 1]), np.zeros([4, 1]), batch_size=1, callbacks=[Saves()], verbose=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


CASES = [
    broadcasts,
    variables_called_alike,
    averages,
    learning_rates,
    momentum_correction,
    rates_of_others,
    scales_are_broadcast,
    best_models,
    errors_of_files,
]


def all_cases():
    hvd.init()
    run_cases(CASES, lambda name: hvd_tf.barrier(name=name))
    hvd.shutdown()


def test_callbacks_on_two_workers():
    call_workers(all_cases, 2, timeout_s=120)
