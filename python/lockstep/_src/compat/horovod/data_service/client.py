"""How both jobs talk to the registry of the compute job."""

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
# What a reply may take longer than the wait that was asked for, in seconds.
_REPLY_TIMEOUT_S = 20.0


class ComputeClient:
    """Requests to a `ComputeService`. Thread safe; each request has a connection of its own.

    Args:
      compute_addresses: (IPv4 address, port) by interface, as `ComputeService.addresses` returns them. The first that
        answers is used.
      key: of the service.
      verbose: 2 logs where the service was found.

    Raises:
      WrongKeyError: the service has another key.
      UnreachableError: nothing answers, or something else.
    """

    def __init__(self, compute_addresses: Mapping[str, Sequence[tuple[str, int]]], key: bytes, verbose: int = 1):
        self._key = key
        candidates = [(str(host), int(port)) for found in compute_addresses.values() for host, port in found]
        self._address = self._first_that_answers(candidates)
        if verbose >= 2:
            _LOG.info("compute service: found at %s:%d", *self._address)

    def check(self) -> None:
        """Raises ComputeJobError if the compute job has failed or ends."""
        self._call("check")

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Says that a dispatcher listens at an address (`grpc://host:port`).

        Raises:
          IndexError: there is no such dispatcher.
          ValueError: it is registered under another address.
        """
        self._call("register_dispatcher", dispatcher_id=dispatcher_id, address=dispatcher_address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """The address of a dispatcher, once it is there.

        Args:
          dispatcher_id: which.
          timeout: after this time, in seconds, it raises.

        Raises:
          IndexError: there is no such dispatcher.
          TimeoutException: it did not come in time.
          ComputeJobError, UnreachableError: the compute job failed or ended meanwhile.
        """
        return str(self._call("wait_for_dispatcher", timeout, dispatcher_id=dispatcher_id, timeout_s=timeout))

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Says that a worker of a dispatcher is ready. IndexError: there is no such dispatcher."""
        self._call("register_worker", dispatcher_id=dispatcher_id, worker_id=worker_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Returns once all workers of a dispatcher are ready; errors of `wait_for_dispatcher_registration`."""
        self._call("wait_for_workers", timeout, dispatcher_id=dispatcher_id, timeout_s=timeout)

    def begin_use(self, dispatcher_id: int, rank: int) -> None:
        """Says that a training rank is going to read through a dispatcher. IndexError: there is no such dispatcher."""
        self._call("begin_use", dispatcher_id=dispatcher_id, rank=rank)

    def end_use(self, dispatcher_id: int, rank: int) -> None:
        """Says that it reads no more. IndexError: there is no such dispatcher."""
        self._call("end_use", dispatcher_id=dispatcher_id, rank=rank)

    def wait_until_unused(self, dispatcher_id: int, timeout: float) -> None:
        """Returns once no training rank reads through a dispatcher; errors of `wait_for_dispatcher_registration`."""
        self._call("wait_until_unused", timeout, dispatcher_id=dispatcher_id, timeout_s=timeout)

    def shutdown(self) -> None:
        """Tells the compute job to end."""
        self._call("shutdown")

    def wait_for_shutdown(self) -> None:
        """Returns once the compute job is told to end, without a limit.

        Raises:
          ComputeJobError: the compute job has failed.
          UnreachableError: its rank 0 is gone.
        """
        self._call("wait_for_shutdown", None)

    def work(self, dispatcher_id: int, worker_id: int) -> bool:
        """Registers a worker, and returns when it should stop: its dispatcher retires, or, if true, the job ends.

        The job fails if the caller is gone before. Errors are those of `wait_for_shutdown`, and IndexError.
        """
        return bool(self._call("work", None, dispatcher_id=dispatcher_id, worker_id=worker_id))

    def end_worker(self, dispatcher_id: int, worker_id: int) -> None:
        """Says that a worker has stopped, and waits as `wait_for_shutdown`, with its errors and IndexError."""
        self._call("end_worker", None, dispatcher_id=dispatcher_id, worker_id=worker_id)

    def retire_dispatcher(self, dispatcher_id: int) -> None:
        """Says that a dispatcher is going to end, so that its workers end first. IndexError: no such dispatcher."""
        self._call("retire_dispatcher", dispatcher_id=dispatcher_id)

    def wait_until_stopped(self, dispatcher_id: int, timeout: float) -> None:
        """Returns once a dispatcher's workers have stopped, also while the job ends.

        Arguments and errors are those of `wait_for_dispatcher_registration`.
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
        tried = "; ".join(f"{host}:{port}: {error}" for (host, port), error in errors) or "no address is given"
        raise UnreachableError(f"no compute service answers: {tried}")

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
        """The value of the reply, or the error that the service reports."""
        with socket.create_connection(address, _CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(timeout_s)
            registry_messages.keep_alive(connection)
            reply = registry_messages.ask(connection, self._key, request)
        if "error" in reply:
            kind = REPORTED.get(str(reply["error"]), DataServiceError)
            return None, kind(str(reply.get("message")))
        return reply.get("value"), None
