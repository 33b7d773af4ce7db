"""Hooks and policies of two workers: see stopping_worker.py."""

import pytest

from tests.multiprocess import promises

pytestmark = pytest.mark.oldest


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return promises.run("sessions.stopping_worker", timeout_s=90, arguments=[str(tmp_path_factory.mktemp("stopping"))])


@pytest.mark.parametrize("promise", promises.of("sessions.stopping_worker"))
def test_hooks_and_policies_keep_their_promises(output, promise):
    promises.assert_kept(output, promise)
