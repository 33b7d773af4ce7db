"""The other hosts of a job together: each side hears every second that the other is alive, and all end together."""

import contextlib
import selectors
import threading
import time
from collections.abc import Callable

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.local.guard import Guard
from lockstep.launch.remote.agent_wire import ALIVE_EVERY_S
from lockstep.launch.remote.remote_host import RemoteHost

# For agents to say that they are done.
_END_TIMEOUT_S = 3.0
_LEAST_PATIENCE_S = 0.05


class ConnectedHosts:
    """Other hosts; they come and may go."""

    def __init__(self) -> None:
        self._hosts: list[RemoteHost] = []  # replaced, never changed: another thread reads it
        self._heartbeats_stop = threading.Event()
        self._heartbeat_thread: threading.Thread | None = None

    def add(self, host: RemoteHost) -> None:
        """One more."""
        self._hosts = [*self._hosts, host]

    def remove(self, host: RemoteHost) -> None:
        """One that is lost."""
        self._hosts = [other for other in self._hosts if other is not host]

    def start_heartbeats(self, guard: Guard) -> None:
        """From here on all are told again and again that this launcher is alive, and so is its guard.

        By a thread: the launcher may wait for who reads its output, and should not be taken for frozen.
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
        """What has to be done though nothing happened."""
        for host in self._hosts:
            host.tick()

    def seconds_until_tick(self) -> float:
        """For how many seconds `tick` is not needed."""
        now = time.monotonic()
        times = [host.silent_at() for host in self._hosts if not host.is_over]
        return max(_LEAST_PATIENCE_S, min([*times, now + ALIVE_EVERY_S]) - now)

    def end(self, selector: selectors.BaseSelector, call: Callable[[Callable[[int], None], int], None]) -> None:
        """Ends all that runs there, and hears what is still said, for some seconds at most.

        Args:
          selector: Calls the functions that are registered with it.
          call: Calls one of them.
        """
        for host in self._hosts:
            host.say({"is": "end"})
        deadline = time.monotonic() + _END_TIMEOUT_S
        known = [host for host in self._hosts if host.is_ready]
        while not all(host.is_over for host in known) and time.monotonic() < deadline:
            for key, events in selector.select(0.1):
                if key.data is not None:  # A function; workers' pipes, and signals, have none.
                    with contextlib.suppress(LaunchError):
                        call(key.data, events)
            self.tick()
        self._heartbeats_stop.set()
        if self._heartbeat_thread is not None:
            self._heartbeat_thread.join()
        for host in self._hosts:
            host.close()
