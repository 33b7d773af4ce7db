"""Workers with unequal shares compute what plain TensorFlow computes on the same rows, batch normalization included."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep.testing import run_module
from tests.parity import unbalanced
from tests.parity.model import assembled


@pytest.fixture(scope="module", autouse=True)
def resource_variables():
    tf.enable_resource_variables()


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Returns a number of workers and the prefix of the files that they wrote; each job runs once."""
    out = tmp_path_factory.mktemp("trained") / "weights"
    run_module(request.param, "tests.parity.unbalanced", str(out), timeout_s=300)
    return request.param, out


# Promise (promises.md): shares of different lengths train as in plain TensorFlow, with batch normalization.
# Promise (hybridbackend.md): they stay in step (HybridBackend, a wrong result: batch statistics, slots and variables
# without gradient drift apart).
@pytest.mark.parametrize("drop_remainder", unbalanced.SHARES)
@pytest.mark.parametrize("model", unbalanced.MODELS)
@pytest.mark.parametrize("trained", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 3))], indirect=True)
def test_unbalanced_shares_train_as_plain_tensorflow_does(trained, model, drop_remainder):
    workers, out = trained
    results = [dict(np.load(f"{out}.{model}.{drop_remainder}.{rank}.npz")) for rank in range(workers)]
    expected = unbalanced.plain(model, workers, drop_remainder)
    assert expected["global_step"] == (2 if drop_remainder and workers > 1 else 4)
    for name, value in expected.items():
        got = assembled(results, name, value.shape)
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-5, err_msg=name)
