"""The tests of Horovod's API and of the named collectives, with tensors on stand-in devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep._src.collectives import named_test
from lockstep._src.compat.horovod import collectives_test, gradients_test, process_sets_test, training_test
from lockstep._src.compat.horovod.collectives_errors_test import test_errors_reach_all_ranks
from lockstep.testing.cases import reported_by_case
from lockstep.testing.workers import call_workers
from tests.standin import plugin

__all__ = ["test_errors_reach_all_ranks"]

pytestmark = pytest.mark.workers


@pytest.fixture(scope="module", autouse=True)
def devices(tmp_path_factory):
    """Adds a device to each worker of the module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in plugin.everywhere(tmp_path_factory.mktemp("standin")).items():
            patch.setenv(name, value)
        yield


@pytest.mark.parametrize(
    ("size", "part", "backend"),
    [
        (2, named_test.all_of_two, "nccl"),
        pytest.param(4, named_test.all_ops, "nccl", marks=pytest.mark.long),
        (2, named_test.all_of_two, "staged"),
    ],
)
def test_named_collectives_agree_with_numpy(size, part, backend):
    call_workers(part, size, timeout_s=120, environment={"LOCKSTEP_COMM_DEVICE": backend})


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_collectives_of_horovod(size):
    assert len(set(call_workers(collectives_test.everything, size, timeout_s=240))) == 1


def with_process_sets() -> None:
    for part in ("static_sets", "dynamic_sets", "objects", "variables", "some_ranks"):
        getattr(process_sets_test, part)()


def test_process_sets():
    call_workers(with_process_sets, 4, timeout_s=240)


# New objects, because the imported modules' objects keep the results of their jobs on CPUs.
test_tapes_and_optimizers = reported_by_case(training_test.all_cases, training_test.CASES, 2, timeout_s=240)
test_gradients = reported_by_case(gradients_test.all_cases, gradients_test.CASES, 2, timeout_s=240)


def count_copies() -> dict[str, Any]:
    """Returns the work of the device in one call of a function that makes each kind of named collective on it."""
    hvd.init()

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.device("/gpu:0"):
            several = hvd.grouped_allreduce([x, y], op=hvd.Average, name="several")
            summed = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=2.0, name="alone")
            given = hvd.broadcast(x, 1, name="given")
            rows = hvd.allgather(x, name="rows")
            mine = hvd.reducescatter(x, op=hvd.Sum, name="mine")
        return [*several, summed, given, rows, mine]

    with tf.device("/gpu:0"):
        x, y = tf.ones([2, 3]) * (1.0 + hvd.rank()), tf.ones([5])
    step(x, y)
    before = plugin.work()
    results = step(x, y)
    done = plugin.work() - before
    values = [result.numpy() for result in results]
    devices = [result.device for result in results]
    hvd.shutdown()
    return {"work": done, "devices": devices, "values": values}


def test_tensors_of_a_device_are_exchanged_without_a_copy_through_the_host():
    ones, threes = np.ones([2, 3]), np.full([2, 3], 3.0)
    rows = np.repeat([[1.0], [1.0], [2.0], [2.0]], 3, axis=1)
    for done in call_workers(count_copies, 2):
        assert all(device.endswith("GPU:0") for device in done["devices"])
        assert (done["work"].to_device, done["work"].to_host) == (0, 0)
        wanted = [1.5 * ones, np.ones(5), threes, 2 * ones, rows, threes[:1]]
        for got, value in zip(done["values"], wanted, strict=True):
            np.testing.assert_array_equal(got, value)


def on_different_devices() -> list[str]:
    """Reduces a tensor on a device on rank 0, and on the CPU on rank 1; returns the errors."""
    hvd.init()
    messages = []
    for step in range(2):
        with tf.device("/gpu:0" if hvd.rank() == 0 else "/cpu:0"):
            x = tf.ones([3])
            with pytest.raises(tf.errors.FailedPreconditionError) as caught:
                hvd.allreduce(x, name=f"loss{step}")
            messages.append(caught.value.message)
    hvd.shutdown()
    return messages


def test_a_tensor_on_a_gpu_and_one_on_a_cpu_are_a_disagreement():
    for messages in call_workers(on_different_devices, 2):
        assert all("a GPU" in message and "the CPU" in message for message in messages), messages
