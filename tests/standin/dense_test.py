"""Dense training on stand-in devices: results of plain TensorFlow, bits of collectives on CPUs, copies of a step.

For each number of workers a job trains all cases of dense_cases.py; each case is reported by itself.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from lockstep.testing.workers import call_workers
from tests.standin import dense_cases, plugin

pytestmark = pytest.mark.workers

_TIMEOUT_S = 240
# Values that a worker computes of its own rows only.
_OWN = "losses"
_NOT_RESULTS = ("copies", "devices")


@functools.cache
def plain() -> dict[str, Any]:
    return call_workers(dense_cases.plain, 1, timeout_s=_TIMEOUT_S)[0]


@functools.cache
def trained(job: str, workers: int, backend: str) -> list[dict[str, Any]]:
    """Returns what each worker of a job has trained; `backend` moves tensors between devices.

    Jobs of two workers have delays: a stream that does not wait for another one shows in the results.
    """
    environment = plugin.environment(backend=backend, delay_us=100 if workers == 2 else 0)
    return call_workers(dense_cases.in_job, workers, job, timeout_s=_TIMEOUT_S, environment=environment)


def values_of(case: str, workers: int, backend: str) -> list[dict[str, Any]]:
    """Returns each worker's values of a case."""
    of_workers = [done[case] for done in trained(dense_cases.CASES[case], workers, backend)]
    for values in of_workers:
        assert not isinstance(values, str), values
    return of_workers


def results(values: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in values.items() if name not in _NOT_RESULTS}


# Promise (gpu.md): dense models train on GPUs as in plain TensorFlow.
@pytest.mark.parametrize("case", [case for case in dense_cases.CASES if case != "wire"])
@pytest.mark.parametrize("workers", [2, 1, pytest.param(3, marks=pytest.mark.long)])
def test_trains_as_plain_tensorflow(workers, case):
    wanted = plain()[case]
    assert not isinstance(wanted, str), wanted
    of_workers = [results(values) for values in values_of(case, workers, "nccl")]
    for name, value in results(wanted).items():
        if name == _OWN:
            mean = np.mean([values[name] for values in of_workers], 0)
            np.testing.assert_allclose(mean, value, rtol=1e-5, atol=1e-6, err_msg=name)
            continue
        for values in of_workers:
            np.testing.assert_allclose(values[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


# TensorFlow's own kernels run on the device in both jobs: on CPUs, oneDNN's kernels have other bits.
# Promise (gpu.md): collectives on GPUs of one host have the bits of the CPU's collectives.
@pytest.mark.parametrize("case", dense_cases.CASES)
@pytest.mark.parametrize(
    ("workers", "backend"), [(2, "nccl"), pytest.param(3, "nccl", marks=pytest.mark.long), (2, "staged")]
)
def test_has_the_bits_of_collectives_on_cpus(workers, backend, case):
    of_devices, of_cpus = values_of(case, workers, backend), values_of(case, workers, "host")
    for device, cpu in zip(map(results, of_devices), map(results, of_cpus), strict=True):
        assert device.keys() == cpu.keys()
        for name in cpu:
            assert device[name].tobytes() == cpu[name].tobytes(), (name, device[name], cpu[name])


@pytest.mark.parametrize("case", [case for case in dense_cases.CASES if "keras" in case])
def test_weights_are_on_the_device(case):
    for values in values_of(case, 2, "nccl"):
        assert values["devices"] == {"GPU:0"}


# Promise (gpu.md): a step copies its batch to the GPU and its loss from it, and nothing else.
@pytest.mark.parametrize(
    ("workers", "case"),
    [
        (workers, case)
        for workers in (1, 2)
        for case in ("session", "clipping", "batch_normalization", "wire", "hvd_session", "hvd_tape")
    ],
)
def test_a_step_copies_only_its_batch_and_its_loss(workers, case):
    for values in values_of(case, workers, "nccl"):
        # The features and the labels; the loss.
        assert values["copies"].tolist() == [2, 1]
