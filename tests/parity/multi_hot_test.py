"""Grouped tables, single-valued and multi-hot, train on W workers as in plain TensorFlow, for every combiner."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from lockstep.testing import call_workers
from tests.parity import multi_hot
from tests.parity.training_test import assembled

plain = functools.cache(multi_hot.plain)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_grouped_tables_train_as_in_plain_tensorflow(workers):
    results = call_workers(multi_hot.work, workers, timeout_s=300)
    for optimizer in multi_hot.OPTIMIZERS:
        for name, value in plain(optimizer).items():
            got = assembled([result[optimizer] for result in results], name, value.shape)
            np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6, err_msg=f"{optimizer} {name}")
