"""News of hosts, which the launcher sends to the workers of an elastic job."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from typing import Any, Protocol

from lockstep.launch.base.elastic_wire import ADDRESS


class HostUpdateResult(enum.IntFlag):
    """Kinds of changes of a job's hosts."""

    __module__ = "horovod.runner.elastic.worker"

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Listener(Protocol):
    """A state, which is called when there is news."""

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Receives a change of hosts and its time, on any thread."""


class WorkerNotificationManager:
    """Forwards the launcher's news of hosts to states."""

    def __init__(self) -> None:
        self._listeners: dict[Listener, Callable[[Any], None]] = {}

    def init(self) -> None:
        """Does nothing: this process listens from the first state on."""

    def register_listener(self, listener: Listener) -> None:
        """Calls the state's `on_hosts_updated` from here on, in an elastic job."""
        worker = member()
        if worker is None or listener in self._listeners:
            return

        def hear(change: Any) -> None:
            result = HostUpdateResult.no_update
            result |= HostUpdateResult.added if change.added else HostUpdateResult.no_update
            result |= HostUpdateResult.removed if change.removed else HostUpdateResult.no_update
            listener.on_hosts_updated(change.at, result)

        self._listeners[listener] = hear
        worker.listen(hear)

    def remove_listener(self, listener: Listener) -> None:
        """Ends the calls of the state's `on_hosts_updated`."""
        hear = self._listeners.pop(listener, None)
        if hear is not None:
            member().unlisten(hear)


notification_manager = WorkerNotificationManager()


def member() -> Any:
    """Returns this process's connection to the launcher of its elastic job; None outside of such a job."""
    if ADDRESS not in os.environ:
        return None
    from lockstep._src.engine import elastic  # Loads TensorFlow.

    return elastic.member()
