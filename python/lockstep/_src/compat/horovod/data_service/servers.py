"""tf.data's dispatcher and worker, announced under an address that other hosts reach."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lockstep._src.compat.horovod.data_service import addresses
from lockstep._src.compat.horovod.data_service.client import ComputeClient
from lockstep._src.compat.horovod.data_service.errors import DataServiceError, TimeoutException

_LOG = logging.getLogger("lockstep")

_HEARTBEAT_MS = 1000
# How long a server may take to stop, in seconds; it is left to the end of the process then.
STOP_TIMEOUT_S = 10.0


@contextlib.contextmanager
def dispatcher(client: ComputeClient, dispatcher_id: int) -> Iterator[str]:
    """Runs a dispatcher on a free port, and registers it; gives its address, `grpc://host:port`.

    When the body is left, its workers stop first: one that still works through a dataset which nobody has read to its
    end would go on asking a dispatcher that is gone, and not stop until its patience is over.

    Args:
      client: of the registry.
      dispatcher_id: of this one.

    Raises:
      ValueError: the interface that the environment asks for is not there, or the dispatcher is registered already.
      DataServiceError: the compute job cannot be reached.
    """
    with _dispatch_server() as address:
        client.register_dispatcher(dispatcher_id, address)
        try:
            yield address
        except BaseException:
            # Who fails, or is told to end by a signal, has no time.
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
        # TensorFlow listens on all interfaces, but names itself localhost.
        protocol, _, target = server.target.partition("://")
        yield f"{protocol}://{host}:{target.rpartition(':')[2]}"
    finally:
        _stop(server, "dispatcher")


@contextlib.contextmanager
def worker(dispatcher_address: str, timeout_s: float) -> Iterator[None]:
    """Runs a worker of a dispatcher on a free port; it has registered there when the body starts.

    Args:
      dispatcher_address: `grpc://host:port`.
      timeout_s: how long the dispatcher may take to answer, in seconds.

    Raises:
      ValueError: the interface that the environment asks for is not there.
      tf.errors.OpError: the dispatcher does not answer.
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
    server = tf.data.experimental.service.WorkerServer(config, start=False)
    try:
        server.start()
        yield
    finally:
        _stop(server, "worker")


def _stop(server: Any, what: str) -> None:
    def stop() -> None:
        # TensorFlow's public way is to delete all references, which a traceback may hold.
        server._stop()
        server.join()

    thread = threading.Thread(target=stop, name=f"stop {what}", daemon=True)
    thread.start()
    thread.join(STOP_TIMEOUT_S)
    if thread.is_alive():
        _LOG.warning("the data service's %s has not stopped within %g s", what, STOP_TIMEOUT_S)
