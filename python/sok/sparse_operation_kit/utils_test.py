import datetime

import tensorflow as tf

from sparse_operation_kit import utils


def test_helpers():
    assert utils.SOK_IndexedSlices() is tf.IndexedSlices
    time = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc)
    assert utils.get_nano_time("2026-01-31 12:00:00") == int(time.timestamp()) * 10**9
