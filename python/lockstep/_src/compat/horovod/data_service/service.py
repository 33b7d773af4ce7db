"""The server of the registry, a thread of rank 0 of the compute job."""

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

# What a client that connects may take for its request, in seconds.
_REQUEST_TIMEOUT_S = 10.0
# What those who wait may take for being told of the end, in seconds.
_FAREWELL_S = 5.0
_BACKLOG = 512
# Connections without a request that is signed: each costs a thread. Beyond so many the oldest is hung up on.
_MAX_STRANGERS = 128


class ComputeService:
    """Keeps a registry of dispatchers and workers, and answers `ComputeClient`s over TCP. Thread safe.

    It listens from the start, on a free port of all interfaces, or of `nics` alone.

    Args:
      dispatchers: how many there will be.
      workers_per_dispatcher: how many workers each will have.
      key: 32 random bytes; who does not know them is not answered.
      nics: names of the network interfaces to use; all by default.

    Raises:
      ValueError: a number is not positive, or an interface is not there.
      OSError: it cannot listen.
    """

    def __init__(self, dispatchers: int, workers_per_dispatcher: int, key: bytes, nics: Sequence[str] | None = None):
        self._registry = Registry(dispatchers, workers_per_dispatcher)
        self._key = key
        found = addresses.reachable_addresses(list(nics) if nics else None)
        host = next(iter(found.values())) if nics and len(found) == 1 else ""
        self._requests = _Requests(self._registry)
        self._answering = 0
        self._is_closed = False
        self._strangers: dict[socket.socket, None] = {}  # the oldest first
        # Guards the three above.
        self._changed = threading.Condition()
        self._server = _Server((host, 0), self._answer)
        self._addresses = {name: [(address, self.get_port())] for name, address in found.items()}
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="compute service", daemon=True
        )
        self._thread.start()

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Where it listens: (IPv4 address, port) by interface; loopback only where there is nothing else."""
        return {name: list(found) for name, found in self._addresses.items()}

    def get_port(self) -> int:
        """The port on which it listens."""
        return int(self._server.server_address[1])

    def fail(self, reason: str) -> None:
        """Tells all who wait that the compute job has failed; `shutdown` has to follow."""
        self._registry.fail(reason)

    def shutdown(self) -> None:
        """Tells all who wait that the compute job ends, and stops to listen. A second time it does nothing."""
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
            # A client that went away, or a port scanner: nobody to tell.
            _LOG.info("compute service: lost %s:%d: %s", *client, error)
        finally:
            with self._changed:
                self._answering -= 1
                self._changed.notify_all()

    def _admit_stranger(self, connection: socket.socket) -> None:
        with self._changed:
            self._strangers[connection] = None
            if len(self._strangers) > _MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                # Its thread, which reads, sees the end; the descriptor stays that thread's to close.
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def _converse(self, connection: socket.socket) -> None:
        connection.settimeout(_REQUEST_TIMEOUT_S)
        keep_alive(connection)
        side = ServerSide(connection, self._key)
        self._admit_stranger(connection)
        try:
            request = side.receive(_REQUEST_TIMEOUT_S)
        finally:
            with self._changed:
                self._strangers.pop(connection, None)
        connection.settimeout(_REQUEST_TIMEOUT_S)
        try:
            reply = {"value": self._requests.handle(request, lambda: _is_open(connection))}
        except tuple(REPORTED.values()) as error:
            reply = {"error": type(error).__name__, "message": str(error)}
        side.reply(reply)


class _Requests:
    """Calls the registry as a request says: `request` names the method of the client, the rest are its arguments."""

    def __init__(self, registry: Registry):
        self._registry = registry

    def handle(self, request: Mapping[str, Any], is_wanted: Callable[[], bool]) -> Any:
        """What is replied. ValueError: no such request, or its arguments have the wrong types."""
        registry = self._registry
        name = request.get("request")
        if name == "ping":
            return None
        if name == "check":
            return registry.check()
        if name == "shutdown":
            return registry.shutdown()
        if name == "wait_for_shutdown":
            return registry.wait_for_shutdown(is_wanted)
        dispatcher = _argument(request, "dispatcher_id", int)
        if name == "register_dispatcher":
            return registry.register_dispatcher(dispatcher, _argument(request, "address", str))
        if name == "register_worker":
            return registry.register_worker(dispatcher, _argument(request, "worker_id", int))
        if name == "work":
            return self._work(dispatcher, _argument(request, "worker_id", int), is_wanted)
        if name == "end_worker":
            registry.end_worker(dispatcher, _argument(request, "worker_id", int))
            return registry.wait_for_shutdown(is_wanted)
        if name == "retire_dispatcher":
            return registry.retire_dispatcher(dispatcher)
        if name == "begin_use":
            return registry.begin_use(dispatcher, _argument(request, "rank", int))
        if name == "end_use":
            return registry.end_use(dispatcher, _argument(request, "rank", int))
        waits = {
            "wait_for_dispatcher": registry.wait_for_dispatcher,
            "wait_for_workers": registry.wait_for_workers,
            "wait_until_stopped": registry.wait_until_stopped,
            "wait_until_unused": registry.wait_until_unused,
        }
        if name in waits:
            return waits[name](dispatcher, _argument(request, "timeout_s", (int, float)), is_wanted)
        raise ValueError(f"the compute service knows no request {name!r}")

    def _work(self, dispatcher: int, worker: int, is_wanted: Callable[[], bool]) -> bool:
        self._registry.register_worker(dispatcher, worker)
        try:
            return self._registry.wait_for_end_of_work(dispatcher, is_wanted)
        except ConnectionError:
            # A worker stays until the end: where it doesn't, it was killed.
            self._registry.fail(f"compute worker {worker} is gone")
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
    """Whether the client still waits: it has nothing to send, so what is there to read can only be the end."""
    with contextlib.suppress(OSError):
        return not select.select([connection], [], [], 0)[0]
    return False
