"""Tests that lines of progress are seen once by programs that show INFO of either logger."""

import logging

import pytest
import tensorflow as tf

from lockstep._src.engine import progress


@pytest.mark.parametrize(
    ("lockstep", "tensorflow", "seen"),
    [
        (logging.INFO, logging.WARNING, ["lockstep"]),
        (logging.INFO, logging.INFO, ["lockstep"]),
        (logging.WARNING, logging.INFO, ["tensorflow"]),
        (logging.WARNING, logging.WARNING, []),
    ],
)
def test_a_line_is_seen_once(lockstep, tensorflow, seen, caplog):
    caplog.set_level(lockstep, "lockstep")
    caplog.set_level(tensorflow, tf.get_logger().name)
    caplog.handler.setLevel(logging.INFO)
    progress.info("auc = %.2f", 0.5)
    assert [(record.name, record.getMessage()) for record in caplog.records] == [(name, "auc = 0.50") for name in seen]
