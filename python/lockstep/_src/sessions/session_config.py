"""The configuration of a worker's session; follows HybridBackend's `wraps_session_config`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def get_session_config(*args: Any, **kwargs: Any) -> tf.compat.v1.ConfigProto:
    """Returns a configuration for a session of a job; it takes the arguments of `tf.compat.v1.ConfigProto`."""
    kwargs.setdefault("allow_soft_placement", True)
    return wraps_session_config(tf.compat.v1.ConfigProto(*args, **kwargs))


def wraps_session_config(
    session_config: tf.compat.v1.ConfigProto | None, *args: Any, **kwargs: Any
) -> tf.compat.v1.ConfigProto:
    """Returns a configuration for a session of a job; `session_config` itself is not changed.

    Args:
      session_config: the program's configuration, or None for a new one. The new one allows soft placement, so that a
        program with '/gpu:0' also runs on a machine without a GPU.
      *args: arguments of `tf.compat.v1.ConfigProto`, used if `session_config` is None.
      **kwargs: as `args`.

    Returns:
      A copy of the configuration with two changes: GPU memory is allocated as needed, and tensors that are copied to
      GPUs are in pinned memory.
    """
    if session_config is None:
        return get_session_config(*args, **kwargs)
    wrapped = tf.compat.v1.ConfigProto()
    wrapped.CopyFrom(session_config)
    wrapped.gpu_options.allow_growth = True
    wrapped.gpu_options.force_gpu_compatible = True
    return wrapped
