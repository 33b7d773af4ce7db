"""Tapes that exchange, in a job of one rank, against plain TensorFlow.

Compression to 16 bits shows which gradients are exchanged: it rounds only these.
"""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd

# The value is exact in 32 bits. In 16 bits it becomes 1.
FINE = 1 + 2**-12
MAKERS = [hvd.DistributedGradientTape, hvd.PartialDistributedGradientTape]


@pytest.fixture(name="job", autouse=True)
def _job():
    """Joins a job of one rank, and leaves it after the test."""
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("make", MAKERS)
def test_gradients_are_those_of_the_plain_tape_in_the_structure_of_the_sources(make):
    v, w = tf.Variable([1.0, 2.0]), tf.Variable([[3.0]])
    with tf.GradientTape(persistent=True) as plain:
        loss = tf.reduce_sum(v * v) * tf.squeeze(w)
    sources = {"v": v, "w": [w]}
    got, wanted = make(plain).gradient(loss, sources), plain.gradient(loss, sources)
    tf.nest.map_structure(np.testing.assert_array_equal, got, wanted)


@pytest.mark.parametrize("make", MAKERS)
def test_arguments_reach_the_exchange(make):
    v, x = tf.Variable([2.0]), tf.constant([FINE])
    with tf.GradientTape(persistent=True) as plain:
        loss = tf.reduce_sum(v * x)
    assert make(plain).gradient(loss, v).numpy() == [FINE]
    tape = make(plain, compression=hvd.Compression.fp16, op=hvd.Sum)
    assert tape.gradient(loss, v).numpy() == [1.0]
    tape.register_local_source(v)
    assert tape.gradient(loss, v).numpy() == [FINE]


def test_gradients_of_local_layers_are_not_exchanged():
    local, other = (keras.layers.Dense(1, use_bias=False) for _ in range(2))
    with tf.GradientTape() as plain:
        loss = tf.reduce_sum(local(tf.constant([[FINE]])) + other(tf.constant([[FINE]])))
    tape = hvd.PartialDistributedGradientTape(plain, compression=hvd.Compression.fp16, local_layers=local)
    sources = [layer.trainable_variables[0] for layer in (local, other)]
    assert [float(g[0, 0]) for g in tape.gradient(loss, sources)] == [FINE, 1.0]


@pytest.mark.parametrize("make", MAKERS)
def test_wrong_arguments_are_named(make):
    for arguments, error, message in (
        ({"op": 9}, ValueError, "op: got 9, wanted one of hvd.Average"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, ValueError, "not supported with op != Average"),
        ({"groups": -1}, ValueError, "groups should be a non-negative integer"),
        ({"compression": "fp16"}, TypeError, "compression: got 'fp16', wanted hvd.Compression.none"),
        ({"process_set": 1}, TypeError, "process_set: got 1, wanted hvd.ProcessSet"),
    ):
        with pytest.raises(error, match=message):
            make(tf.GradientTape(), **arguments)
    with pytest.raises(ValueError, match="tf.keras.layers.Layer type"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=["dense"])


def test_the_two_tapes_differ_in_local_layers_alone():
    whole, partial = (list(inspect.signature(make).parameters) for make in MAKERS)
    assert [name for name in partial if name != "local_layers"] == whole
