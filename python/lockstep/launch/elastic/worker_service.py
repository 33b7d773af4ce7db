"""The launcher's TCP service for the workers of an elastic job. It runs on the launcher's selector, without a thread.

`elastic_wire` describes the protocol. A connection is unauthenticated until a message proves that its sender knows the
job's secret. The number of unauthenticated connections is limited.
"""

import contextlib
import selectors
import socket
from collections.abc import Callable
from typing import Any

from lockstep.launch.base.elastic_wire import Channel, WireError
from lockstep.launch.placement.tasks import LOOPBACK

_MAX_UNAUTHENTICATED = 64


class WorkerService:
    """A service on this machine's loopback interface, and on request on all interfaces, until the `with` block ends.

    Args:
      secret: The job's secret.
      selector: Calls the functions that are registered with it (`SupervisedJob`).
      heard: Called with each message of a worker: the worker's number, and the message.

    Attributes:
      address: host:port, for workers on this machine.
    """

    def __init__(self, secret: str, selector: selectors.BaseSelector, heard: Callable[[int, dict[str, Any]], None]):
        self._secret, self._selector, self._heard = secret, selector, heard
        # By file descriptor, the oldest connection first.
        self._peers: dict[int, _Peer] = {}
        self._listeners: list[socket.socket] = []
        self.address = f"{LOOPBACK}:{self._listen(socket.create_server((LOOPBACK, 0), backlog=128))}"
        self._outside: int | None = None

    def port_outside(self) -> int:
        """Returns the port for workers on other hosts. The first call opens it."""
        if self._outside is None:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            server = socket.create_server(("", 0), family=family, backlog=128, dualstack_ipv6=both)
            self._outside = self._listen(server)
        return self._outside

    def _listen(self, server: socket.socket) -> int:
        server.setblocking(False)
        self._listeners.append(server)
        self._selector.register(server, selectors.EVENT_READ, lambda events: self._accept(server))
        return server.getsockname()[1]

    def say(self, worker: int, message: dict[str, Any]) -> None:
        """Sends a message to a worker, if it has a connection."""
        for peer in list(self._peers.values()):
            if peer.worker == worker:
                peer.channel.say(message)
                self._move(peer)

    def __enter__(self) -> "WorkerService":
        return self

    def __exit__(self, *exception: object) -> None:
        for peer in list(self._peers.values()):
            self._drop(peer)
        for server in self._listeners:
            self._selector.unregister(server)
            server.close()

    def _accept(self, server: socket.socket) -> None:
        try:
            connection, _ = server.accept()
        except OSError:  # The peer has left, or no file descriptor is free: the worker will report its own error.
            return
        unauthenticated = [peer for peer in self._peers.values() if peer.worker is None]
        if len(unauthenticated) >= _MAX_UNAUTHENTICATED:
            self._drop(unauthenticated[0])
        connection.setblocking(False)
        peer = _Peer(connection, Channel(self._secret, is_launcher=True))
        self._peers[connection.fileno()] = peer
        self._selector.register(connection, selectors.EVENT_READ, lambda events: self._move(peer))
        self._move(peer)

    def _move(self, peer: "_Peer") -> None:
        """Receives and sends all available bytes, without blocking."""
        if peer.connection.fileno() not in self._peers:
            return
        try:
            messages, more = peer.move()
        except (WireError, OSError):
            more, messages = False, []
        for message in messages:
            if peer.worker is None and type(message.get("worker")) is int:
                peer.worker = message["worker"]
            if peer.worker is not None:
                self._heard(peer.worker, message)
        if not more:
            self._drop(peer)
        elif peer.connection.fileno() in self._peers:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.channel.outgoing else 0)
            self._selector.modify(peer.connection, events, lambda events: self._move(peer))

    def _drop(self, peer: "_Peer") -> None:
        if self._peers.pop(peer.connection.fileno(), None) is not None:
            self._selector.unregister(peer.connection)
            peer.connection.close()


class _Peer:
    """A connection, with the number of its worker once that is authenticated."""

    def __init__(self, connection: socket.socket, channel: Channel):
        self.connection, self.channel = connection, channel
        self.worker: int | None = None

    def move(self) -> tuple[list[dict[str, Any]], bool]:
        """Returns the messages received, and whether the connection is still open."""
        messages, more = [], True
        with contextlib.suppress(BlockingIOError):
            while more:
                data = self.connection.recv(1 << 16)
                messages += self.channel.feed(data)
                more = bool(data)
        with contextlib.suppress(BlockingIOError):
            while more and self.channel.outgoing:
                sent = self.connection.send(self.channel.outgoing)
                self.channel.outgoing = self.channel.outgoing[sent:]
        return messages, more
