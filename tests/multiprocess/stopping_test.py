"""Hooks and policies of two workers: see stopping_worker.py."""

import pytest

from tests.multiprocess.promises import assert_kept

pytestmark = pytest.mark.oldest


def test_hooks_and_policies_keep_their_promises(tmp_path):
    assert_kept("stopping_worker", arguments=[str(tmp_path)], timeout_s=90)
