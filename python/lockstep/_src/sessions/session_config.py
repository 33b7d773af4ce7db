"""The configuration of a worker's session, after HybridBackend's `wraps_session_config`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def get_session_config(*args: Any, **kwargs: Any) -> tf.compat.v1.ConfigProto:
    """A configuration for a session of a job; arguments are those of `tf.compat.v1.ConfigProto`."""
    kwargs.setdefault("allow_soft_placement", True)
    return wraps_session_config(tf.compat.v1.ConfigProto(*args, **kwargs))


def wraps_session_config(
    session_config: tf.compat.v1.ConfigProto | None, *args: Any, **kwargs: Any
) -> tf.compat.v1.ConfigProto:
    """The configuration that a session of a job has in place of `session_config`, which stays as it is.

    Args:
      session_config: the caller's, or None for a new one in which operations go where there is a kernel for them
        (`allow_soft_placement`), so that a program that says '/gpu:0' runs where there is no GPU.
      *args: of `tf.compat.v1.ConfigProto`, where `session_config` is None.
      **kwargs: as `args`.

    Returns:
      A configuration that takes memory of GPUs as it is needed, and has what is copied to them in pinned memory.
    """
    if session_config is None:
        return get_session_config(*args, **kwargs)
    wrapped = tf.compat.v1.ConfigProto()
    wrapped.CopyFrom(session_config)
    wrapped.gpu_options.allow_growth = True
    wrapped.gpu_options.force_gpu_compatible = True
    return wrapped
