"""Wrappers that exchange gradients by name: for optimizers of TensorFlow 1, Keras 2 and Keras 3, and for tapes."""
