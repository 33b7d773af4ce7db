"""Input functions for data in memory; follows `tf.estimator.inputs` of TensorFlow 1."""

from lockstep._src.estimator.inputs import numpy_input_fn, pandas_input_fn

__all__ = ["numpy_input_fn", "pandas_input_fn"]
