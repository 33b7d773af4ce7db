"""tf.data's dispatcher and worker, with an address that other hosts can reach."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lockstep._src.compat.horovod.data_service import addresses
from lockstep._src.compat.horovod.data_service.client import ComputeClient
from lockstep._src.compat.horovod.data_service.errors import DataServiceError, TimeoutException

_LOG = logging.getLogger("lockstep")

_HEARTBEAT_MS = 1000
# The pause in seconds between two attempts to reach a dispatcher.
_RETRY_S = 0.1
# The time in seconds within which a server should stop. After that, it runs until the process ends.
STOP_TIMEOUT_S = 10.0


@contextlib.contextmanager
def dispatcher(client: ComputeClient, dispatcher_id: int) -> Iterator[str]:
    """Runs a dispatcher on a free port inside the block, and registers it; yields its address, `grpc://host:port`.

    When the block is left, the dispatcher's workers stop first. A worker may still process a dataset that was not read
    to its end. Without its dispatcher, such a worker would keep asking for it until a long timeout.

    Args:
      client: a client of the registry.
      dispatcher_id: the dispatcher's number, from 0.

    Raises:
      ValueError: the interface that the environment requests does not exist, or the dispatcher is already registered.
      IndexError: there is no such dispatcher.
      DataServiceError: the compute job cannot be reached.
    """
    with _dispatch_server() as address:
        client.register_dispatcher(dispatcher_id, address)
        try:
            yield address
        except BaseException:
            # A process that fails, or that a signal ends, does not wait for the workers.
            with contextlib.suppress(DataServiceError):
                client.retire_dispatcher(dispatcher_id)
            raise
        with contextlib.suppress(DataServiceError, TimeoutException):
            client.retire_dispatcher(dispatcher_id)
            client.wait_until_stopped(dispatcher_id, STOP_TIMEOUT_S)


@contextlib.contextmanager
def _dispatch_server() -> Iterator[str]:
    host = addresses.own_address(addresses.chosen_interfaces())
    server = tf.data.experimental.service.DispatchServer()
    try:
        # TensorFlow listens on all interfaces, but gives localhost as its address.
        protocol, _, target = server.target.partition("://")
        yield f"{protocol}://{host}:{target.rpartition(':')[2]}"
    finally:
        _stop(server, "dispatcher")


@contextlib.contextmanager
def worker(dispatcher_address: str, timeout_s: float) -> Iterator[None]:
    """Runs a worker of a dispatcher on a free port inside the block; the dispatcher then already knows the worker.

    Args:
      dispatcher_address: the dispatcher's address, `grpc://host:port`.
      timeout_s: how long the dispatcher may take to accept a connection, and then to answer TensorFlow, in seconds
        each.

    Raises:
      ValueError: the interface that the environment requests does not exist.
      tf.errors.OpError: the dispatcher accepts no connection in time, or the worker cannot start.
    """
    protocol, _, target = dispatcher_address.partition("://")
    host = addresses.own_address(addresses.chosen_interfaces())
    config = tf.data.experimental.service.WorkerConfig(
        dispatcher_address=target,
        worker_address=f"{host}:%port%",
        data_transfer_address=f"{host}:%dts_port%",
        protocol=protocol,
        heartbeat_interval_ms=_HEARTBEAT_MS,
        dispatcher_timeout_ms=int(timeout_s * 1000),
    )
    _wait_for_dispatcher(target, timeout_s)
    server = tf.data.experimental.service.WorkerServer(config, start=False)
    try:
        server.start()
    except BaseException:
        # TensorFlow crashes when it joins or destroys a server that has not started, so this one is kept for ever.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        raise
    try:
        yield
    finally:
        _stop(server, "worker")


def _wait_for_dispatcher(target: str, timeout_s: float) -> None:
    """Waits until a dispatcher at `host:port` accepts connections.

    A worker of TensorFlow would wait without a limit, and meanwhile stop all Python threads of the process.
    """
    host, _, port = target.rpartition(":")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, int(port)), max(_RETRY_S, deadline - time.monotonic())).close()
            return
        except OSError as error:
            if time.monotonic() + _RETRY_S > deadline:
                message = f"data service: the dispatcher at {target} has not answered within {timeout_s:g} s: {error}"
                raise tf.errors.DeadlineExceededError(None, None, message) from None
        time.sleep(_RETRY_S)


def _stop(server: Any, what: str) -> None:
    def stop() -> None:
        # TensorFlow's public way to stop a server is to delete all references to it, but a traceback may hold one.
        server._stop()
        server.join()

    thread = threading.Thread(target=stop, name=f"stop {what}", daemon=True)
    thread.start()
    thread.join(STOP_TIMEOUT_S)
    if thread.is_alive():
        _LOG.warning("the data service's %s has not stopped within %g s", what, STOP_TIMEOUT_S)
