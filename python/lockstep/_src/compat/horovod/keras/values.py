"""Values in Keras' session, or at once where TensorFlow runs eagerly."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def evaluate(value: Any) -> Any:
    """Returns the value of a tensor; in a graph, the result of running a tensor or an operation in Keras' session."""
    return value if tf.executing_eagerly() else tf.compat.v1.keras.backend.get_session().run(value)
