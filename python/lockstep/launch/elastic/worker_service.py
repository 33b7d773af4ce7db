"""Where the workers of an elastic job talk to its launcher: a TCP service on the launcher's selector, without a thread.

`elastic_wire` says what is said. A connection is a worker's from its first message that proves the job's secret; until
then it may be anybody's, and there may only be a few of them.
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
    """Listens on this machine's loopback interface until the `with` block ends; where it is told so, on all of them.

    Args:
      secret: The job's.
      selector: Calls the functions that are registered with it (`SupervisedJob`).
      heard: Is called with each message of a worker: the worker's number, and the message.

    Attributes:
      address: host:port, for workers on this machine.
    """

    def __init__(self, secret: str, selector: selectors.BaseSelector, heard: Callable[[int, dict[str, Any]], None]):
        self._secret, self._selector, self._heard = secret, selector, heard
        # By file descriptor, in the order of their coming.
        self._peers: dict[int, _Peer] = {}
        self._listeners: list[socket.socket] = []
        self.address = f"{LOOPBACK}:{self._listen(socket.create_server((LOOPBACK, 0), backlog=128))}"
        self._outside: int | None = None

    def port_outside(self) -> int:
        """The port at which workers on other hosts find it; nobody listens there before it was asked for."""
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
        """Tells a worker something, where it has a connection."""
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
        except OSError:  # It went away again, or there are no more files: the worker will say why it can't.
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
        """Takes in and sends what there is, without waiting."""
        if peer.connection.fileno() not in self._peers:
            return
        try:
            messages, more = peer.move()
        except (WireError, OSError):
            more, messages = False, []
        for message in messages:
            if peer.worker is None and isinstance(message.get("worker"), int):
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
    """A connection, and whose it is."""

    def __init__(self, connection: socket.socket, channel: Channel):
        self.connection, self.channel = connection, channel
        self.worker: int | None = None

    def move(self) -> tuple[list[dict[str, Any]], bool]:
        """(what was said, whether the connection is still there)."""
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
