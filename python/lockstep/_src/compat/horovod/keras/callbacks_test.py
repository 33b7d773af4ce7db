"""Keras' callbacks on two workers."""

from __future__ import annotations

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
from lockstep.testing import reported_by_case, run_cases

pytestmark = pytest.mark.workers

KERAS3 = int(keras.__version__.partition(".")[0]) >= 3


def line(optimizer):
    """Returns a model y = w x that begins with w = 1."""
    model = keras.Sequential(
        [keras.layers.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    model.compile(optimizer, keras.losses.MeanSquaredError())
    return model


# On workers.


def averages():
    logs = {"loss": 1.0 + hvd.rank(), "accuracy": np.float32(hvd.rank())}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs == {"loss": 1.5, "accuracy": 0.5}
    logs = {"of each class": np.array([hvd.rank(), 4.0])}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    np.testing.assert_allclose(logs["of each class"], [0.5, 4.0])
    with pytest.raises(ValueError, match=r"rank 0 has the metrics \['a'\], rank 1 \['b'\]"):
        hvd_tf_keras.callbacks.MetricAverageCallback().on_epoch_end(0, {"ab"[hvd.rank()]: 1.0})


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
    averages,
    best_models,
    errors_of_files,
]


def all_cases():
    hvd.init()
    run_cases(CASES, lambda name: hvd_tf.barrier(name=name))
    hvd.shutdown()


# Promise (horovod_training.md): callbacks do what Horovod's do.
test_callbacks_on_two_workers = reported_by_case(all_cases, CASES, 2, timeout_s=120)
