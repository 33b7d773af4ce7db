"""The other hosts of a job as a group: exchanges heartbeats with their agents, and ends all of them together."""

import contextlib
import selectors
import threading
import time
from collections.abc import Callable

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.local.guard import Guard
from lockstep.launch.remote.agent_wire import ALIVE_EVERY_S
from lockstep.launch.remote.remote_host import RemoteHost

# For the agents' last messages, that they are done.
_END_TIMEOUT_S = 3.0
_LEAST_PATIENCE_S = 0.05


class ConnectedHosts:
    """The hosts of a job that have an agent. Hosts may join and leave."""

    def __init__(self) -> None:
        self._hosts: list[RemoteHost] = []  # replaced, never modified: another thread reads it
        self._heartbeats_stop = threading.Event()
        self._heartbeat_thread: threading.Thread | None = None

    def add(self, host: RemoteHost) -> None:
        """Adds a host."""
        self._hosts = [*self._hosts, host]

    def remove(self, host: RemoteHost) -> None:
        """Removes a host that is lost."""
        self._hosts = [other for other in self._hosts if other is not host]

    def start_heartbeats(self, guard: Guard) -> None:
        """Starts regular signs of life of this launcher to all agents and the guard.

        A thread does this: the launcher may wait for the reader of its output, and must not look frozen then.
        """
        if self._heartbeat_thread is not None:
            return

        def beat() -> None:
            while not self._heartbeats_stop.wait(ALIVE_EVERY_S):
                guard.alive()
                for host in self._hosts:
                    host.alive()

        self._heartbeat_thread = threading.Thread(target=beat, name="lockstep alive", daemon=True)
        self._heartbeat_thread.start()

    def tick(self) -> None:
        """Does for each host what is due after some time (`RemoteHost.tick`)."""
        for host in self._hosts:
            host.tick()

    def seconds_until_tick(self) -> float:
        """Returns for how many seconds `tick` need not be called."""
        now = time.monotonic()
        times = [host.silent_at() for host in self._hosts if not host.is_over]
        return max(_LEAST_PATIENCE_S, min([*times, now + ALIVE_EVERY_S]) - now)

    def end(self, selector: selectors.BaseSelector, call: Callable[[Callable[[int], None], int], None]) -> None:
        """Ends all workers there, and takes the last messages, for some seconds at most.

        Args:
          selector: Has the functions to be called.
          call: Calls one of them.
        """
        for host in self._hosts:
            host.say({"is": "end"})
        deadline = time.monotonic() + _END_TIMEOUT_S
        known = [host for host in self._hosts if host.is_ready]
        while not all(host.is_over for host in known) and time.monotonic() < deadline:
            for key, events in selector.select(0.1):
                if key.data is not None:  # A function. Workers' pipes and the signals' socket have none.
                    with contextlib.suppress(LaunchError):
                        call(key.data, events)
            self.tick()
        self._heartbeats_stop.set()
        if self._heartbeat_thread is not None:
            self._heartbeat_thread.join()
        for host in self._hosts:
            host.close()
