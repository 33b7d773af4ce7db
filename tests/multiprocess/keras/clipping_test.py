"""Optimizers of Keras 3 clip gradients of tables on several workers as plain Keras does in one process."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing import call_workers

pytestmark = pytest.mark.skipif(
    not getattr(tf.keras, "__version__", "2").startswith("3"), reason="TensorFlow before 2.16 has no Keras 3"
)


# Promise (hybridbackend.md): the gradient that plain TensorFlow changes, on any number of workers (HybridBackend, a
# wrong result: clipping by value, and of dense or summed gradients of tables, depends on the number of workers).
def test_clipping_is_that_of_plain_keras():
    from tests.multiprocess.keras import clipping_worker as worker

    (plain,) = call_workers(worker.trained, 1, False, timeout_s=120)
    for outcome in call_workers(worker.trained, 2, True, timeout_s=120):
        assert outcome.keys() == plain.keys()
        for case, wanted in plain.items():
            for got, expected in zip(outcome[case], wanted, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6, err_msg=case)
