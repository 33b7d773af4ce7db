"""Grouped tables, single-valued and multi-hot, train on W workers as in plain TensorFlow, for every combiner."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from lockstep.testing import call_workers
from tests.parity import multi_hot
from tests.parity.model import assembled

plain = functools.cache(multi_hot.plain)


# Numbers of workers, or each worker's host: with several hosts, the workers of one host look up together.
WORKERS = ["aab", *(pytest.param(workers, marks=pytest.mark.long) for workers in (1, 2, 3, "abba"))]


@pytest.fixture(scope="module", params=WORKERS)
def results(request):
    """Returns the results of each worker; each job runs once."""
    hosts = request.param if isinstance(request.param, str) else ""
    variables = {"HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP": "1"}
    return call_workers(multi_hot.work, len(hosts) or request.param, environment=variables, hosts=hosts, timeout_s=300)


# Promise (promises.md): pooled lookups train as in plain TensorFlow, on one host and across hosts.
@pytest.mark.parametrize("optimizer", multi_hot.OPTIMIZERS)
def test_grouped_tables_train_as_in_plain_tensorflow(results, optimizer):
    for name, value in plain(optimizer).items():
        got = assembled([result[optimizer, False] for result in results], name, value.shape)
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("optimizer", multi_hot.OPTIMIZERS)
def test_dynamic_tables_train_as_static_ones_in_plain_tensorflow(results, optimizer):
    parts = [result[optimizer, True] for result in results]
    for name in ("hidden_kernel", "out_kernel"):
        for part in parts:
            np.testing.assert_allclose(part[name], plain(optimizer)[name], rtol=1e-5, atol=1e-6)
    for table, shape in multi_hot.TABLES.items():
        name = f"table_{table}"
        got = multi_hot.initial(name, shape)
        keys = np.concatenate([part[name][0] for part in parts])
        assert len(keys) == len(np.unique(keys)) > shape[0] / 4, "a key has one owner"
        got[keys] = np.concatenate([part[name][1] for part in parts])
        np.testing.assert_allclose(got, plain(optimizer)[name], rtol=1e-5, atol=1e-6, err_msg=name)
