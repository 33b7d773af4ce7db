"""The documented programs of HybridBackend and Horovod, letter by letter, on stand-in devices: one for each worker.

The tests of the programs on CPUs are repeated, with the same results to expect.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.scripts import horovod_documentation_test
from tests.scripts.horovod_documentation_test import test_the_tensorflow_2_program
from tests.scripts.hybridbackend_generation_1_test import (
    data,
    outputs,
    test_an_optimizer_trains_as_one_process_on_the_rows_of_both_workers,
    test_the_session_trains_evaluates_and_exports_on_all_workers,
)
from tests.scripts.hybridbackend_generation_2_test import (
    job,
    test_each_spelling_trains_as_one_process_on_the_rows_of_both_workers,
    test_the_export_serves_what_was_trained,
    test_the_session_evaluates_and_leaves_the_callers_hooks_alone,
)
from tests.standin import plugin

__all__ = [
    "data",
    "job",
    "outputs",
    "test_an_optimizer_trains_as_one_process_on_the_rows_of_both_workers",
    "test_each_spelling_trains_as_one_process_on_the_rows_of_both_workers",
    "test_the_export_serves_what_was_trained",
    "test_the_session_evaluates_and_leaves_the_callers_hooks_alone",
    "test_the_session_trains_evaluates_and_exports_on_all_workers",
    "test_the_tensorflow_2_program",
]


@pytest.fixture(scope="module", autouse=True)
def devices(tmp_path_factory):
    """Adds two devices to all processes of the module's tests. Horovod's programs choose one by their local rank."""
    folder = tmp_path_factory.mktemp("standin")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**plugin.environment(devices=2), **plugin.installed(folder)}.items():
            patch.setenv(name, value)
        yield
    # The programs' workers have computed on the devices.
    assert sum(work.launches > 0 for work in plugin.work_of_programs(folder)) >= 2


@pytest.mark.xfail(
    tf.__version__ < "2.16",
    reason="TensorFlow 2.15 itself takes all devices for a one-shot iterator; then no session can choose one",
    strict=True,
)
def test_the_tensorflow_1_program(tmp_path):
    horovod_documentation_test.test_the_tensorflow_1_program(tmp_path)
