"""Layers for models in graphs of TensorFlow 1."""

from lockstep._src.keras.layers import dense_features

__all__ = ["dense_features"]
