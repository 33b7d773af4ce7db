"""Servers, devices and sessions of a cluster under HybridBackend's names (docs/hybridbackend.md).

Each worker of a job runs a session in its own process, and the workers communicate through the engine. No gRPC server
runs behind these names, and nothing listens on a cluster's addresses.
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
    """A process of a job, in place of TensorFlow's `tf.distribute.Server`.

    Args:
      server_or_cluster_def: not used; the environment describes the job (`context`).
      **kwargs: the other arguments of TensorFlow's server; not used.
    """

    _default: Server | None = None

    def __init__(self, server_or_cluster_def: Any = None, **kwargs: Any) -> None:
        del server_or_cluster_def, kwargs

    @classmethod
    def get(cls) -> Server:
        """Returns the server of this process."""
        if Server._default is None:
            Server._default = cls()
        return Server._default

    @property
    def target(self) -> str:
        """The target of this process's sessions."""
        return context.target

    @property
    def cluster_spec(self) -> Any:
        """The cluster that the environment describes, `context.cluster_spec`."""
        return context.cluster_spec

    def start(self) -> None:
        """Does nothing, because no server has to start."""

    def join(self) -> None:
        """Returns immediately, because no worker needs another process's server."""

    def monitored_session(self, **kwargs: Any) -> Any:
        """Returns a `MonitoredTrainingSession` of the job; takes its arguments."""
        return monitored_training_session(self.target, **kwargs)


def wraps_server(cls: type) -> type:
    """Returns the class itself if it is a `Server`, else `Server`: HybridBackend's decorator of server classes."""
    return cls if isinstance(cls, type) and issubclass(cls, Server) else Server


def target() -> str:
    """Returns the target of this process's sessions."""
    return Server.get().target


def device_setter() -> Callable[[tf.Operation], str]:
    """Returns a function for `tf.device` that places operations on the device on which this worker trains.

    Operations with a device from an inner `tf.device` keep it, and tables stay on the CPU. On GPUs, sessions must allow
    soft placement if the program itself places operations there that have no GPU kernel, such as input from files. The
    sessions of this module allow it.
    """
    (device,) = context.local_devices

    def place(op: tf.Operation) -> str:
        return op.device or device

    return place


def monitored_training_session(*args: Any, **kwargs: Any) -> Any:
    """Returns a `tf.compat.v1.train.MonitoredTrainingSession` of the job, in a scope or not.

    It takes the arguments of that function, and those in `session.EXTRA_ARGUMENTS`. Without a `config`, it uses
    `get_session_config()`.
    """
    with scope():
        return tf.compat.v1.train.MonitoredTrainingSession(*args, **kwargs)


def monitored_session(**kwargs: Any) -> Any:
    """Returns a `MonitoredTrainingSession` of the job; takes its arguments by name."""
    return Server.get().monitored_session(**kwargs)


def wraps_monitored_training_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function with the arguments of `MonitoredTrainingSession` so that it creates sessions of the job."""
    return functools.wraps(function)(scope()(session.wrap_monitored_session(function)))
