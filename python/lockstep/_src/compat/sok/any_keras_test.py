"""Tests of classes that extend a class of Keras which is chosen later."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lockstep._src.compat.sok import any_keras


def keras_2():
    """Returns Keras 2; skips the test if it is not installed."""
    return pytest.importorskip("tf_keras") if any_keras.is_keras_3(tf.keras) else tf.keras


class Scaled(any_keras.ExtendsKeras):
    """A layer."""

    @classmethod
    def _base_in(cls, keras):
        return keras.layers.Layer

    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, inputs):
        return self.factor * inputs


def test_objects_extend_the_keras_of_the_program():
    layer = Scaled(2.0, name="own")
    assert isinstance(layer, Scaled)
    assert isinstance(layer, tf.keras.layers.Layer)
    assert (type(layer).__name__, type(layer).__module__, layer.name) == ("Scaled", __name__, "own")
    assert float(layer(tf.constant(3.0))) == 6
    assert type(Scaled(1.0)) is type(layer)
    assert any_keras.keras_of_program() is tf.keras


def test_another_keras():
    with any_keras.using(keras_2()):
        layer = Scaled(2.0)
    assert isinstance(layer, keras_2().layers.Layer)
    assert not any_keras.is_of_keras_3(layer)
    assert any_keras.is_of_keras_3(Scaled(2.0)) == any_keras.is_keras_3(tf.keras)
    # Keras 2 replaces the bases of a class in a graph.
    with tf.Graph().as_default(), any_keras.using(keras_2()):
        assert type(Scaled(2.0)) is not type(layer)
    assert float(layer(tf.constant(3.0))) == 6


def test_subclasses_of_programs():
    class Doubled(Scaled):
        def __init__(self):
            super().__init__(2.0)

    layer = Doubled()
    assert isinstance(layer, Doubled)
    assert isinstance(layer, tf.keras.layers.Layer)
    assert float(layer(tf.constant(3.0))) == 6
