"""The tests of the ordered collectives, with tensors on stand-in devices; and how much they copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.collectives.ordered_test import (
    test_a_cancelled_step_frees_its_collective_and_tells_the_peers,
    test_a_killed_peer_is_named,
    test_bad_arguments_on_one_rank_raise_on_all_and_the_job_goes_on,
    test_every_op_agrees_with_numpy_in_every_mode,
    test_every_type_is_carried,
    test_gradients_are_those_of_the_sum_of_all_losses,
    test_rows_without_elements_are_carried_on_a_host_and_between_hosts,
    test_shapes_that_differ_are_named_on_both_ranks,
)
from lockstep.testing.workers import call_workers
from tests.standin import plugin

__all__ = [
    "test_a_cancelled_step_frees_its_collective_and_tells_the_peers",
    "test_a_killed_peer_is_named",
    "test_bad_arguments_on_one_rank_raise_on_all_and_the_job_goes_on",
    "test_every_op_agrees_with_numpy_in_every_mode",
    "test_every_type_is_carried",
    "test_gradients_are_those_of_the_sum_of_all_losses",
    "test_rows_without_elements_are_carried_on_a_host_and_between_hosts",
    "test_shapes_that_differ_are_named_on_both_ranks",
]

pytestmark = pytest.mark.workers


# dense_test.py and named_test.py run some of the staged ones in `make test` too, and the core's tests run all.
@pytest.fixture(scope="module", autouse=True, params=["nccl", pytest.param("staged", marks=pytest.mark.long)])
def backend(request, tmp_path_factory):
    """Adds a device to each worker of the module's tests, which exchanges by this backend."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("standin")
        for name, value in plugin.everywhere(folder, backend=request.param).items():
            patch.setenv(name, value)
        yield request.param


def count_copies() -> dict[str, Any]:
    """Returns the work of the device in one call of a function that reduces, gathers and scatters on it."""

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.device("/gpu:0"):
            several = ordered.allreduce([x, y], op="mean", name="several")
            (alone,) = ordered.allreduce([x], name="alone")
            given = ordered.broadcast([x, y], root=1)
            rows = ordered.allgather(x)
            received, _ = ordered.alltoall(x)
            mine = ordered.reducescatter(x)
        return [*several, alone, *given, rows, received, mine]

    with tf.device("/gpu:0"):
        x, y = tf.ones([2, 3]) * (1.0 + ordered.context.rank), tf.ones([5])
    step(x, y)
    before = plugin.work()
    results = step(x, y)
    done = plugin.work() - before
    return {"work": done, "devices": [r.device for r in results], "values": [r.numpy() for r in results]}


def test_tensors_of_a_device_are_exchanged_without_a_copy_through_the_host():
    ones, threes = np.ones([2, 3]), np.full([2, 3], 3.0)
    of_both = np.repeat([[1.0], [2.0]], 3, axis=1)
    wanted = [1.5 * ones, np.ones(5), threes, 2 * ones, np.ones(5), np.repeat(of_both, 2, axis=0), of_both, threes[:1]]
    for done in call_workers(count_copies, 2):
        assert all(device.endswith("GPU:0") for device in done["devices"])
        assert (done["work"].to_device, done["work"].to_host) == (0, 0)
        for got, value in zip(done["values"], wanted, strict=True):
            np.testing.assert_array_equal(got, value)


def on_different_devices() -> list[str]:
    """Calls a collective with a tensor on a device on rank 0, and on the CPU on rank 1; returns the errors."""
    messages = []
    for _ in range(2):
        with tf.device("/gpu:0" if ordered.context.rank == 0 else "/cpu:0"):
            x = tf.ones([3])
            with pytest.raises(tf.errors.FailedPreconditionError) as caught:
                ordered.allreduce(x, name="loss")
            messages.append(caught.value.message)
    return messages


def test_a_tensor_on_a_gpu_and_one_on_a_cpu_are_a_disagreement():
    for messages in call_workers(on_different_devices, 2):
        assert all("rank 0" in message and "rank 1" in message for message in messages), messages
