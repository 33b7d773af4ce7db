"""Workers with unequal shares compute what plain TensorFlow computes on the same rows, batch normalization included."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep.testing import run_module
from tests.parity import unbalanced
from tests.parity.training_test import assembled


@pytest.fixture(scope="module", autouse=True)
def resource_variables():
    tf.enable_resource_variables()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_unbalanced_shares_train_as_plain_tensorflow_does(workers, tmp_path):
    out = tmp_path / "weights"
    run_module(workers, "tests.parity.unbalanced", str(out), timeout_s=300)
    for model, drop_remainder in itertools.product(unbalanced.MODELS, unbalanced.SHARES):
        results = [dict(np.load(f"{out}.{model}.{drop_remainder}.{rank}.npz")) for rank in range(workers)]
        expected = unbalanced.plain(model, workers, drop_remainder)
        assert expected["global_step"] == (2 if drop_remainder and workers > 1 else 4)
        for name, value in expected.items():
            got = assembled(results, name, value.shape)
            np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-5, err_msg=f"{model} {drop_remainder} {name}")
