"""Servers, devices and sessions of a cluster, as HybridBackend's programs name them (docs/hybridbackend.md).

Workers of a job run a session each, in their own process, and meet in the engine; there is no gRPC server behind these
names, and a cluster's addresses are not listened on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import scope
from lockstep._src.sessions import session


class Server:
    """A process in its job, where TensorFlow has a `tf.distribute.Server`.

    Args:
      server_or_cluster_def: not used: who is in the job says the environment (`context`).
      **kwargs: not used, as that of TensorFlow's server takes them.
    """

    _default: Server | None = None

    def __init__(self, server_or_cluster_def: Any = None, **kwargs: Any) -> None:
        del server_or_cluster_def, kwargs

    @classmethod
    def get(cls) -> Server:
        """The one of this process."""
        if Server._default is None:
            Server._default = cls()
        return Server._default

    @property
    def target(self) -> str:
        """Target of this process's sessions."""
        return context.target

    @property
    def cluster_spec(self) -> Any:
        """`context.cluster_spec`."""
        return context.cluster_spec

    def start(self) -> None:
        """Does nothing: nothing listens."""

    def join(self) -> None:
        """Returns at once: no worker asks another process for anything outside of the engine."""

    def monitored_session(self, **kwargs: Any) -> Any:
        """A `MonitoredTrainingSession` of the job; takes its arguments."""
        return monitored_training_session(self.target, **kwargs)


def wraps_server(cls: type) -> type:
    """HybridBackend's decorator of server classes: gives the class itself if it is a `Server`, else `Server`."""
    return cls if isinstance(cls, type) and issubclass(cls, Server) else Server


def target() -> str:
    """Target of this process's sessions."""
    return Server.get().target


def device_setter() -> Callable[[tf.Operation], str]:
    """A function for `tf.device` that places operations on the device that this worker trains on.

    What has a device of its own, by an inner `tf.device`, keeps it. On GPUs, sessions have to allow soft placement
    (those of this module do), since not every operation runs on one.
    """
    (device,) = context.local_devices

    def place(op: tf.Operation) -> str:
        return op.device or device

    return place


def monitored_training_session(*args: Any, **kwargs: Any) -> Any:
    """`tf.compat.v1.train.MonitoredTrainingSession` of the job, in a scope or not.

    Takes its arguments, and those of `session.EXTRA_ARGUMENTS`. Without a `config`, that of `get_session_config`.
    """
    with scope():
        return session.monitored_training_session(*args, **kwargs)


def monitored_session(**kwargs: Any) -> Any:
    """A `MonitoredTrainingSession` of the job; takes its arguments by name."""
    return Server.get().monitored_session(**kwargs)


def wraps_monitored_training_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the arguments of `tf.compat.v1.train.MonitoredTrainingSession` whose sessions are the job's."""
    wrapped = session.of_the_job(function)

    @functools.wraps(function)
    def in_scope(*args: Any, **kwargs: Any) -> Any:
        with scope():
            return wrapped(*args, **kwargs)

    return in_scope
