"""Lines about a program's progress, at the level INFO: values of evaluations, losses, times of steps.

Programs of TensorFlow 1 show such lines by `tf.compat.v1.logging.set_verbosity`, others by Python's logger `lockstep`.
A line goes to the latter if it shows INFO, else to TensorFlow's; so no program sees it twice.
"""

from __future__ import annotations

import logging
from typing import Any

import tensorflow as tf

_log = logging.getLogger("lockstep")


def info(message: str, *values: Any) -> None:
    """Logs a line; takes the arguments of Python's `Logger.info`."""
    if _log.isEnabledFor(logging.INFO):
        _log.info(message, *values)
    else:
        tf.compat.v1.logging.info(message, *values)
