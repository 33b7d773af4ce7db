"""The server of the registry; it runs in a thread of rank 0 of the compute job."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep._src.compat.horovod.data_service import addresses
from lockstep._src.compat.horovod.data_service.errors import REPORTED, DataServiceError, WrongKeyError
from lockstep._src.compat.horovod.data_service.registry import Registry
from lockstep._src.compat.horovod.data_service.registry_messages import ServerSide, keep_alive

_LOG = logging.getLogger("lockstep")

# The time in seconds within which a client must send its request.
_REQUEST_TIMEOUT_S = 10.0
# The time in seconds that `shutdown` waits until waiting clients have got their reply.
_FAREWELL_S = 5.0
_BACKLOG = 512
# The largest number of unauthenticated connections, because each costs a thread. A further one closes the oldest.
_MAX_UNAUTHENTICATED = 128


class ComputeService:
    """A server that keeps a registry of dispatchers and workers, and answers `ComputeClient`s over TCP.

    It listens when it is created, on a free port of all interfaces, or only of `nics`. It is thread safe.

    Args:
      dispatchers: the number of dispatchers.
      workers_per_dispatcher: the number of workers of each dispatcher.
      key: 32 random bytes; requests without this key are not answered.
      nics: names of the network interfaces to use; None for all.

    Raises:
      ValueError: a number is not positive, or an interface does not exist.
      OSError: it cannot listen.
    """

    def __init__(self, dispatchers: int, workers_per_dispatcher: int, key: bytes, nics: Sequence[str] | None = None):
        self._registry = Registry(dispatchers, workers_per_dispatcher)
        self._key = key
        found = addresses.reachable_addresses(list(nics) if nics else None)
        host = next(iter(found.values())) if nics and len(found) == 1 else ""
        self._answering = 0
        self._is_closed = False
        self._unauthenticated: dict[socket.socket, None] = {}  # the oldest first
        # _changed guards the three attributes above.
        self._changed = threading.Condition()
        self._server = _Server((host, 0), self._answer)
        self._addresses = {name: [(address, self.get_port())] for name, address in found.items()}
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="compute service", daemon=True
        )
        self._thread.start()

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Returns (IPv4 address, port) by interface; loopback only if no other interface exists."""
        return {name: list(found) for name, found in self._addresses.items()}

    def get_port(self) -> int:
        """Returns the port on which the service listens."""
        return int(self._server.server_address[1])

    def fail(self, reason: str) -> None:
        """Notifies all waiting clients that the compute job has failed; call `shutdown` after it."""
        self._registry.fail(reason)

    def shutdown(self) -> None:
        """Notifies all waiting clients that the compute job ends, and stops listening. A second call does nothing."""
        self._registry.shutdown()
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            deadline = time.monotonic() + _FAREWELL_S
            while self._answering and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_FAREWELL_S)

    def _answer(self, connection: socket.socket, client: tuple[str, int]) -> None:
        with self._changed:
            self._answering += 1
        try:
            self._converse(connection)
        except WrongKeyError:
            _LOG.warning("compute service: refused a request from %s:%d, signed with another key", *client)
        except (OSError, DataServiceError) as error:
            # The client has gone, or it was a port scanner: nobody waits for an answer.
            _LOG.info("compute service: lost %s:%d: %s", *client, error)
        finally:
            with self._changed:
                self._answering -= 1
                self._changed.notify_all()

    def _admit_unauthenticated(self, connection: socket.socket) -> None:
        with self._changed:
            self._unauthenticated[connection] = None
            if len(self._unauthenticated) > _MAX_UNAUTHENTICATED:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
                # The thread that reads this connection sees its end, and closes the descriptor.
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def _converse(self, connection: socket.socket) -> None:
        connection.settimeout(_REQUEST_TIMEOUT_S)
        keep_alive(connection)
        side = ServerSide(connection, self._key)
        self._admit_unauthenticated(connection)
        try:
            request = side.receive(_REQUEST_TIMEOUT_S)
        finally:
            with self._changed:
                self._unauthenticated.pop(connection, None)
        connection.settimeout(_REQUEST_TIMEOUT_S)
        try:
            reply = {"value": _handle(self._registry, request, lambda: _is_open(connection))}
        except tuple(REPORTED.values()) as error:
            reply = {"error": type(error).__name__, "message": str(error)}
        side.reply(reply)


# The requests, which are methods of the registry, and the arguments of each.
_REQUESTS = {
    "check": (),
    "fail": ("reason",),
    "shutdown": (),
    "wait_for_shutdown": (),
    "register_dispatcher": ("dispatcher_id", "address"),
    "wait_for_dispatcher": ("dispatcher_id", "timeout_s"),
    "register_worker": ("dispatcher_id", "worker_id"),
    "wait_for_workers": ("dispatcher_id", "timeout_s"),
    "work": ("dispatcher_id", "worker_id"),
    "end_worker": ("dispatcher_id", "worker_id"),
    "retire_dispatcher": ("dispatcher_id",),
    "wait_until_stopped": ("dispatcher_id", "timeout_s"),
    "begin_use": ("dispatcher_id", "rank"),
    "end_use": ("dispatcher_id", "rank"),
    "wait_until_unused": ("dispatcher_id", "timeout_s"),
}
# The types of arguments; all others are integers.
_TYPES: Mapping[str, Any] = {"address": str, "reason": str, "timeout_s": (int, float)}


def _handle(registry: Registry, request: Mapping[str, Any], is_wanted: Callable[[], bool]) -> Any:
    """Returns the reply's value. `request` names the method, all other entries are its arguments.

    Raises ValueError if there is no such request, or an argument's type is wrong.
    """
    name = request.get("request")
    if name == "ping":
        return None
    if not isinstance(name, str) or name not in _REQUESTS:
        raise ValueError(f"the compute service got an unknown request {name!r}")
    arguments = [_argument(request, argument, _TYPES.get(argument, int)) for argument in _REQUESTS[name]]
    if name == "work":
        dispatcher, worker = arguments
        return _work(registry, dispatcher, worker, is_wanted)
    if name == "end_worker":
        registry.end_worker(*arguments)
        return registry.wait_for_shutdown(is_wanted)
    waits = [is_wanted] if name.startswith("wait_") else []
    return getattr(registry, name)(*arguments, *waits)


def _work(registry: Registry, dispatcher: int, worker: int, is_wanted: Callable[[], bool]) -> bool:
    registry.register_worker(dispatcher, worker)
    try:
        return registry.wait_for_end_of_work(dispatcher, is_wanted)
    except ConnectionError:
        # A worker stays connected until the end, so this worker was killed.
        registry.fail(f"compute worker {worker} is gone")
        raise


def _argument(request: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    value = request.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"request {request.get('request')!r}: {name} is {value!r}")
    return value


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = _BACKLOG

    def __init__(self, address: tuple[str, int], answer: Callable[[socket.socket, tuple[str, int]], None]):
        self._answer = answer
        super().__init__(address, socketserver.BaseRequestHandler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        self._answer(request, client_address)


def _is_open(connection: socket.socket) -> bool:
    """Returns whether the client is still connected.

    A waiting client sends nothing. If the connection is readable, the client has closed it.
    """
    with contextlib.suppress(OSError):
        return not select.select([connection], [], [], 0)[0]
    return False
