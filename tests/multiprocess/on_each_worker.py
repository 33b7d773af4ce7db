"""Helpers of programs that run on every worker of a job: a common folder, comparisons, logged messages, hooks.

Functions import the library when they are called, because some programs change their environment before its import.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow.compat.v1 as tf


@contextlib.contextmanager
def common_folder() -> Iterator[str]:
    """Makes one temporary folder for all workers, and removes it when all of them have left the block."""
    from lockstep._src.collectives import agreement

    with tempfile.TemporaryDirectory() as folder:
        yield agreement.from_chief(folder, "folder")
        # The folder must stay until all workers have read it.
        agreement.any_worker(True, "done")


def stacked(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensors of all workers, with a first dimension for the rank."""
    import lockstep

    return lockstep.allgather(tensor[tf.newaxis])


def assert_same_on_all(*arrays: np.ndarray) -> None:
    """Asserts that two workers have the same arrays."""
    with tf.Graph().as_default(), tf.Session() as session:
        for array in arrays:
            own, other = np.split(session.run(stacked(tf.constant(array))), 2)
            np.testing.assert_array_equal(own, other)


@contextlib.contextmanager
def logged(text: str) -> Iterator[list[str]]:
    """Collects the messages of TensorFlow's logger that contain `text`; the list is complete after the block."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    tf.get_logger().addHandler(handler)
    found = []
    try:
        yield found
    finally:
        tf.get_logger().removeHandler(handler)
        found += [record for record in records if text in record]


class Stop(tf.train.SessionRunHook):
    """A hook that requests the end after a number of runs; None: never."""

    def __init__(self, after):
        self._left = after

    def after_run(self, run_context, run_values):
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                run_context.request_stop()


class Listener(tf.train.CheckpointSaverListener):
    """A listener that records the steps at which checkpoints were saved."""

    def __init__(self):
        self.saved = []

    def after_save(self, session, global_step_value):
        self.saved.append(int(global_step_value))
