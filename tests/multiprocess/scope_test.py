"""The scope's promises, on two workers."""

import pytest

from tests.multiprocess.promises import assert_kept

pytestmark = pytest.mark.oldest


@pytest.mark.parametrize("worker", ["scope_worker", "sharded_scope_worker", "training_worker"])
def test_the_scope_keeps_its_promises_on_every_worker(worker):
    assert_kept(worker)
