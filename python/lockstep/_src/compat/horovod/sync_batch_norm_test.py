"""Batch normalization on two workers, against one with the rows of both."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep.testing import reported_by_case, run_cases

tf1 = tf.compat.v1
KERAS3 = hasattr(tf.keras, "__version__") and int(tf.keras.__version__.partition(".")[0]) >= 3
# Rows of each rank.
SHARES = (slice(0, 3), slice(3, 8))


def drawn(seed, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=[8, 2, 3]).astype(dtype)


def trained(layer, x, weights, **arguments):
    """Outputs, and gradients of the inputs and of the layer's weights, for the loss sum(weights * outputs)."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.function(layer)(x, training=True, **arguments)
        loss = tf.reduce_sum(tf.cast(y, tf.float64) * weights)
    of_x, *of_weights = tape.gradient(loss, [x, *(w.value if KERAS3 else w for w in layer.trainable_weights)])
    return y.numpy(), of_x.numpy(), [w.numpy() for w in of_weights]


# On workers.


def batch_normalization():
    """Ranks have 3 and 5 rows: one mean over 8, of what is far from 0; also gradients."""
    values = 1000.0 + np.random.default_rng(1).normal(size=[8, 2, 3]).astype(np.float32)
    weights = np.random.default_rng(2).normal(size=[8, 2, 3]).astype(np.float32)
    begin, end = ((0, 3), (3, 8))[hvd.rank()]
    for axis in (-1, 1):
        plain = tf.keras.layers.BatchNormalization(axis=axis)
        synced = hvd.SyncBatchNormalization(axis=axis)
        results = []
        for layer, rows in ((plain, slice(None)), (synced, slice(begin, end))):
            x = tf.constant(values[rows])
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.function(layer)(x, training=True)
                loss = tf.reduce_sum(tf.convert_to_tensor(y) * weights[rows])
            results.append([y.numpy(), tape.gradient(loss, x).numpy()])
        for whole, mine in zip(*results, strict=True):
            np.testing.assert_allclose(mine, whole[begin:end], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(synced.moving_mean, plain.moving_mean, rtol=1e-5)
        np.testing.assert_allclose(synced.moving_variance, plain.moving_variance, rtol=1e-4)
        copy = hvd.SyncBatchNormalization.from_config(synced.get_config())
        assert copy.axis == synced.axis
    # A rank without rows, twice, and as layers of one model.
    empty = tf.constant(values[:4] if hvd.rank() == 0 else values[:0])
    layer, plain = hvd.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()
    for _ in range(2):
        layer(empty, training=True), plain(tf.constant(values[:4]), training=True)
    np.testing.assert_allclose(layer.moving_variance, plain.moving_variance, rtol=1e-4)
    layers = [hvd.SyncBatchNormalization(), hvd.SyncBatchNormalization()]
    assert layers[0].name != layers[1].name
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)


def types():
    """Checks that float64 is exact, and that moments of 16-bit inputs have 32 bits."""
    own = SHARES[hvd.rank()]
    weights = drawn(2, np.float64)
    for dtype, values, tolerance in (
        ("float64", np.float64, 1e-10),
        ("float32", np.float32, 1e-4),
        ("float16", np.float16, 2e-2),
        ("mixed_float16", np.float16, 2e-2),
        ("mixed_bfloat16", tf.bfloat16.as_numpy_dtype, 1e-1),
    ):
        # Squares of float16 would be infinite.
        x = (300 * drawn(1)).astype(values)
        plain, synced = tf.keras.layers.BatchNormalization(dtype=dtype), hvd.SyncBatchNormalization(dtype=dtype)
        y, of_x, of_weights = trained(plain, x, weights)
        got, got_of_x, got_of_weights = trained(synced, x[own], weights[own])
        assert got.dtype == y.dtype
        np.testing.assert_allclose(got.astype(np.float64), y[own].astype(np.float64), atol=tolerance)
        # Gradients of 16-bit inputs are too small for the type.
        if values in (np.float64, np.float32):
            np.testing.assert_allclose(got_of_x, of_x[own], atol=tolerance)
        for mine, wanted in zip(got_of_weights, of_weights, strict=True):
            both = np.sum(hvd.allgather_object(mine.astype(np.float64)), axis=0)
            np.testing.assert_allclose(both, wanted.astype(np.float64), atol=10 * tolerance)
        np.testing.assert_allclose(np.array(synced.moving_variance), np.array(plain.moving_variance), rtol=1e-2)


def masks():
    """Steps of a sequence that are left out, on one rank all."""
    own = SHARES[hvd.rank()]
    mask = np.random.default_rng(3).random([8, 2]) < 0.5
    for rank_without in (None, 0):
        if rank_without is not None:
            mask[SHARES[rank_without]] = False
        plain, synced = tf.keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
        y, *_ = trained(plain, drawn(1), drawn(2), mask=tf.constant(mask))
        got, *_ = trained(synced, drawn(1)[own], drawn(2)[own], mask=tf.constant(mask[own]))
        np.testing.assert_allclose(got, y[own], atol=1e-4)
        np.testing.assert_allclose(np.array(synced.moving_mean), np.array(plain.moving_mean), atol=1e-5)


def means_that_are_large_against_deviations():
    """Compares with numpy in float64; values of different ranks are far apart, too."""
    own = SHARES[hvd.rank()]
    for offset, between, tolerance in ((1e4, 0.0, 1e-3), (1e6, 0.0, 5e-2), (0.0, 1e5, 1e-3), (-1e4, 1e4, 1e-3)):
        x = drawn(1) + np.float32(offset)
        x[SHARES[1]] += np.float32(between)
        exact = x.astype(np.float64)
        layer = hvd.SyncBatchNormalization(momentum=0.0)
        y, *_ = trained(layer, x[own], drawn(2)[own])
        np.testing.assert_allclose(np.array(layer.moving_mean), exact.mean((0, 1)), rtol=1e-6)
        np.testing.assert_allclose(np.array(layer.moving_variance), exact.var((0, 1)), rtol=1e-4)
        wanted = (exact - exact.mean((0, 1))) / np.sqrt(exact.var((0, 1)) + layer.epsilon)
        np.testing.assert_allclose(y, wanted[own], atol=tolerance * 10)
    # Equal values: the variance is 0, and not below.
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    layer(tf.constant(np.full([3, 2], 1234567.0, np.float32)), training=True)
    np.testing.assert_array_equal(np.array(layer.moving_variance), [0.0, 0.0])


def ranks_that_have_joined_add_nothing():
    """Checks uneven data: moments and gradients come from the ranks that still train."""
    for last in range(2):
        if hvd.rank() == last:
            plain, synced = tf.keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
            for seed in range(3):
                x = 1000 + drawn(seed)
                wanted, got = (trained(layer, x, drawn(5)) for layer in (plain, synced))
                np.testing.assert_allclose(got[0], wanted[0], atol=2e-3)
                np.testing.assert_allclose(got[1], wanted[1], atol=2e-3)
                for mine, others in zip(got[2], wanted[2], strict=True):
                    np.testing.assert_allclose(mine, others, atol=2e-2)
                synced(tf.constant(x), training=True), plain(tf.constant(x), training=True)
            np.testing.assert_allclose(np.array(synced.moving_mean), np.array(plain.moving_mean), rtol=1e-5)
            np.testing.assert_allclose(np.array(synced.moving_variance), np.array(plain.moving_variance), rtol=1e-4)
        assert int(hvd.join()) == last


def inference_is_a_ranks_own():
    """Checks inference, also with a layer that is not trained: no rank waits."""
    layer, x = hvd.SyncBatchNormalization(), tf.constant(drawn(1))
    layer(x, training=True)
    mean, variance = np.array(layer.moving_mean), np.array(layer.moving_variance)
    if hvd.rank() == 0:
        wanted = (x - mean) / np.sqrt(variance + layer.epsilon)
        np.testing.assert_allclose(layer(x), wanted, atol=1e-5)
        np.testing.assert_allclose(tf.function(layer)(x, training=False), wanted, atol=1e-5)
        layer.trainable = False
        np.testing.assert_allclose(layer(x, training=True), wanted, atol=1e-5)
        np.testing.assert_equal(np.array(layer.moving_mean), mean)


def models_train_as_on_one_worker():
    """Trains with a wrapped optimizer and equal shares."""
    x, y = drawn(1).reshape([8, 6]), drawn(2)[:, 0, :1]
    own = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
    results = []
    for normalize, optimizer, rows in (
        (tf.keras.layers.BatchNormalization, tf.keras.optimizers.SGD(0.1), slice(None)),
        (hvd.SyncBatchNormalization, hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), own),
    ):
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(4), normalize(), tf.keras.layers.Activation("relu"), tf.keras.layers.Dense(1)]
        )
        model.compile(optimizer, tf.keras.losses.MeanSquaredError())
        model.fit(x[rows], y[rows], batch_size=8, epochs=4, shuffle=False, verbose=0)
        results.append(model.get_weights())
    for wanted, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def graphs_of_tensorflow1():
    """Updates of the moving averages are in UPDATE_OPS."""
    if KERAS3:
        return
    own = SHARES[hvd.rank()]
    with tf.Graph().as_default(), tf1.Session() as session:
        layer = hvd.SyncBatchNormalization(momentum=0.0)
        y = layer(tf.constant(drawn(1)[own]), training=True)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        assert updates
        session.run(tf1.global_variables_initializer())
        got, _ = session.run([y, updates])
        mean = session.run(layer.moving_mean)
    x = drawn(1).astype(np.float64)
    np.testing.assert_allclose(mean, x.mean((0, 1)), atol=1e-5)
    wanted = (x - x.mean((0, 1))) / np.sqrt(x.var((0, 1)) + layer.epsilon)
    np.testing.assert_allclose(got, wanted[own], atol=1e-4)


CASES = [
    batch_normalization,
    types,
    masks,
    means_that_are_large_against_deviations,
    ranks_that_have_joined_add_nothing,
    inference_is_a_ranks_own,
    models_train_as_on_one_worker,
    graphs_of_tensorflow1,
]


def all_cases():
    hvd.init()
    run_cases(CASES, lambda name: hvd.barrier(name=name))
    hvd.shutdown()


# Promise (horovod_training.md): batch normalization covers the rows of all ranks.
test_batch_normalization_on_two_workers = reported_by_case(all_cases, CASES, 2, timeout_s=240)


_LOAD = """
import sys
import horovod.tensorflow.keras as hvd
from tensorflow import keras
for file in sys.argv[1:]:
    print("loaded", type(keras.models.load_model(file, compile=False).layers[-1]).__module__)
"""


def test_a_program_that_imports_the_module_for_keras_loads_the_layer(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((3,)), hvd.SyncBatchNormalization()])
    files = [str(tmp_path / f"model.{end}") for end in ("keras", "h5")]
    for file in files:
        model.save(file)
    command = [sys.executable, "-c", _LOAD, *files]
    loaded = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.count(f"loaded {hvd.SyncBatchNormalization.__module__}\n") == 2, loaded.stdout
