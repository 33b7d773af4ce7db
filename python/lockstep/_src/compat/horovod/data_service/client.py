"""The client of the compute job's registry; both jobs use it."""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep._src.compat.horovod.data_service import registry_messages
from lockstep._src.compat.horovod.data_service.errors import REPORTED, DataServiceError, UnreachableError, WrongKeyError

_LOG = logging.getLogger("lockstep")

_CONNECT_TIMEOUT_S = 5.0
# The time in seconds that a reply may take in addition to the requested wait.
_REPLY_TIMEOUT_S = 20.0


class ComputeClient:
    """A client of a `ComputeService`. It is thread safe; each request has a connection of its own.

    Args:
      compute_addresses: (IPv4 address, port) by interface, as `ComputeService.addresses` returns them. The first one
        that answers is used.
      key: the service's key.
      verbose: 2 logs the address of the service.

    Raises:
      WrongKeyError: the service has another key.
      UnreachableError: nothing answers, or the answer is not from a compute service.
    """

    def __init__(self, compute_addresses: Mapping[str, Sequence[tuple[str, int]]], key: bytes, verbose: int = 1):
        self._key = key
        candidates = [(str(host), int(port)) for found in compute_addresses.values() for host, port in found]
        self._address = self._first_that_answers(candidates)
        if verbose >= 2:
            _LOG.info("compute service: found at %s:%d", *self._address)

    def check(self) -> None:
        """Checks that the compute job runs. Raises ComputeJobError if it has failed or is ending."""
        self._call("check")

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Registers a dispatcher that listens at an address (`grpc://host:port`).

        Raises:
          IndexError: there is no such dispatcher.
          ValueError: the dispatcher is already registered under another address.
        """
        self._call("register_dispatcher", dispatcher_id=dispatcher_id, address=dispatcher_address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Waits until a dispatcher has registered, and returns its address.

        Args:
          dispatcher_id: the dispatcher's number, from 0.
          timeout: the longest wait, in seconds.

        Raises:
          IndexError: there is no such dispatcher.
          TimeoutException: the dispatcher did not register in time.
          ComputeJobError, UnreachableError: the compute job failed or ended during the wait.
        """
        return str(self._call("wait_for_dispatcher", timeout, dispatcher_id=dispatcher_id, timeout_s=timeout))

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Registers a worker of a dispatcher as ready. Raises IndexError if there is no such dispatcher."""
        self._call("register_worker", dispatcher_id=dispatcher_id, worker_id=worker_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Waits until all workers of a dispatcher are ready; errors as in `wait_for_dispatcher_registration`."""
        self._call("wait_for_workers", timeout, dispatcher_id=dispatcher_id, timeout_s=timeout)

    def begin_use(self, dispatcher_id: int, rank: int) -> None:
        """Registers a training rank as a reader of a dispatcher. Raises IndexError if there is no such dispatcher."""
        self._call("begin_use", dispatcher_id=dispatcher_id, rank=rank)

    def end_use(self, dispatcher_id: int, rank: int) -> None:
        """Removes a training rank from the readers. Raises IndexError if there is no such dispatcher."""
        self._call("end_use", dispatcher_id=dispatcher_id, rank=rank)

    def wait_until_unused(self, dispatcher_id: int, timeout: float) -> None:
        """Waits until no training rank reads from a dispatcher; errors as in `wait_for_dispatcher_registration`."""
        self._call("wait_until_unused", timeout, dispatcher_id=dispatcher_id, timeout_s=timeout)

    def fail(self, reason: str) -> None:
        """Makes the compute job fail: waiting calls, now and later, raise ComputeJobError with the first reason."""
        self._call("fail", reason=reason)

    def shutdown(self) -> None:
        """Tells the compute job to end."""
        self._call("shutdown")

    def wait_for_shutdown(self) -> None:
        """Waits, without a limit, until the compute job receives the request to end.

        Raises:
          ComputeJobError: the compute job has failed.
          UnreachableError: rank 0 of the compute job has died.
        """
        self._call("wait_for_shutdown", None)

    def work(self, dispatcher_id: int, worker_id: int) -> bool:
        """Registers a worker, and waits until it must stop. Returns true if the job ends, false if its dispatcher does.

        The compute job fails if the caller's connection breaks before. Raises the errors of `wait_for_shutdown`, and
        IndexError if there is no such dispatcher.
        """
        return bool(self._call("work", None, dispatcher_id=dispatcher_id, worker_id=worker_id))

    def end_worker(self, dispatcher_id: int, worker_id: int) -> None:
        """Reports that a worker has stopped, then waits like `wait_for_shutdown`; raises its errors and IndexError."""
        self._call("end_worker", None, dispatcher_id=dispatcher_id, worker_id=worker_id)

    def retire_dispatcher(self, dispatcher_id: int) -> None:
        """Announces the end of a dispatcher, so that its workers end first. Raises IndexError if it does not exist."""
        self._call("retire_dispatcher", dispatcher_id=dispatcher_id)

    def wait_until_stopped(self, dispatcher_id: int, timeout: float) -> None:
        """Waits until a dispatcher's workers have stopped, also while the job ends.

        Arguments and errors are the same as in `wait_for_dispatcher_registration`.
        """
        self._call("wait_until_stopped", timeout, dispatcher_id=dispatcher_id, timeout_s=timeout)

    def _first_that_answers(self, candidates: Sequence[tuple[str, int]]) -> tuple[str, int]:
        outcomes: queue.Queue[tuple[tuple[str, int], Exception | None]] = queue.Queue()

        def probe(address: tuple[str, int]) -> None:
            try:
                outcomes.put((address, self._ask(address, {"request": "ping"}, _CONNECT_TIMEOUT_S)[1]))
            except (OSError, DataServiceError) as error:
                outcomes.put((address, error))

        for address in candidates:
            threading.Thread(target=probe, args=(address,), daemon=True).start()
        errors = []
        for _ in candidates:
            address, error = outcomes.get()
            if error is None:
                return address
            errors.append((address, error))
        if wrong := [error for _, error in errors if isinstance(error, WrongKeyError)]:
            raise wrong[0]
        tried = "; ".join(f"{host}:{port}: {error}" for (host, port), error in errors) or "got no address"
        raise UnreachableError(f"no compute service answered: {tried}")

    def _call(self, request: str, wait_s: float | None = 0.0, **arguments: Any) -> Any:
        timeout_s = None if wait_s is None else wait_s + _REPLY_TIMEOUT_S
        try:
            value, error = self._ask(self._address, {"request": request, **arguments}, timeout_s)
        except OSError as broken:
            host, port = self._address
            raise UnreachableError(f"the compute service at {host}:{port} is gone: {broken}") from None
        if error is not None:
            raise error
        return value

    def _ask(
        self, address: tuple[str, int], request: Mapping[str, Any], timeout_s: float | None
    ) -> tuple[Any, Exception | None]:
        """Sends a request; returns the value of the reply, or the error that the service reports."""
        with socket.create_connection(address, _CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(timeout_s)
            registry_messages.keep_alive(connection)
            reply = registry_messages.ask(connection, self._key, request)
        if "error" in reply:
            kind = REPORTED.get(str(reply["error"]), DataServiceError)
            return None, kind(str(reply.get("message")))
        return reply.get("value"), None
