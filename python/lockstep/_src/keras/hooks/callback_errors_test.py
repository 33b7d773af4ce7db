"""Tests that a callback that cannot write its file makes `fit` raise an error, and does not end its data."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.scope import scope

pytestmark = pytest.mark.skipif(not keras.__version__.startswith("3"), reason="only Keras 3 ends an epoch so")


class _Writes(keras.callbacks.Callback):
    def _write(self, batch, logs=None):
        raise tf.errors.OutOfRangeError(None, None, "/a/log; File too large")


class _WritesBefore(_Writes):
    on_train_batch_begin = on_test_batch_begin = on_predict_batch_begin = _Writes._write


class _WritesBehind(_Writes):
    on_train_batch_end = on_test_batch_end = on_predict_batch_end = _Writes._write


@pytest.mark.parametrize("callback", [_WritesBefore, _WritesBehind])
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_callback_that_cannot_write_is_an_error(method, callback):
    data = np.ones((8, 2), np.float32)
    with scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.raises(tf.errors.ResourceExhaustedError, match="^a callback failed: /a/log; File too large"):
            getattr(model, method)(*([data] if method == "predict" else [data, data[:, :1]]), callbacks=[callback()])
