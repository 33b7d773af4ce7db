"""Gradients that a program changes before they are applied equal plain TensorFlow's, on any number of workers."""

import functools

import numpy as np
import pytest

from lockstep.testing import call_workers
from tests.multiprocess.scope import gradients_worker as worker

# A job of three workers has shares of different sizes of the tables' rows.
JOBS = [
    *((kind, 2) for kind in worker.KINDS),
    pytest.param("static", 3, marks=pytest.mark.long),
    *(pytest.param(kind, 1, marks=pytest.mark.long) for kind in worker.KINDS),
]


@functools.cache
def plain(kind):
    """Returns the results of plain TensorFlow for a kind of table."""
    return call_workers(worker.plain, 1, kind, timeout_s=120)[0]


# Promise (hybridbackend.md): the gradient that plain TensorFlow changes, on any number of workers (HybridBackend, a
# wrong result: clipping by value, and of dense or summed gradients of tables, depends on the number of workers).
@pytest.mark.parametrize(("kind", "world"), JOBS)
def test_changed_gradients_are_those_of_plain_tensorflow(kind, world):
    outcomes = call_workers(worker.in_scope, world, kind, timeout_s=120)
    wrong = [
        f"{way}, {change}: {name} of rank {rank} is {got}, wanted {wanted}"
        for rank, outcome in enumerate(outcomes)
        for (way, change), results in outcome.items()
        for name, got, wanted in zip(("table", "weight"), results, plain(kind)[way, change], strict=True)
        if not (np.isfinite(wanted).all() and np.allclose(got, wanted, rtol=1e-4, atol=1e-5))
    ]
    assert not wrong, "\n".join(wrong)
    for outcome in outcomes[1:]:
        for case, results in outcome.items():
            for got, first in zip(results, outcomes[0][case], strict=True):
                np.testing.assert_array_equal(got, first, err_msg=f"{case}: ranks differ")
