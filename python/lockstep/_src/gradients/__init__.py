"""Exchanges of gradients: in a scope, and by name for wrapped optimizers of TensorFlow 1, Keras 2 and 3, and tapes."""
