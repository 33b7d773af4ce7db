"""Horovod's API for Keras, for each `keras` that a program may import: Keras 3, tf.keras and Keras 2."""
