# Promise of this file (security.md): the data service's registry refuses wrong keys and recorded requests.

import contextlib
import logging
import socket

import pytest

from lockstep._src.compat.horovod.data_service import registry_messages
from lockstep._src.compat.horovod.data_service.client import ComputeClient
from lockstep._src.compat.horovod.data_service.errors import WrongKeyError
from lockstep._src.compat.horovod.data_service.service import ComputeService
from lockstep.testing.launching import wait_for

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


_KEY = b"k" * 32


def test_both_jobs_use_the_registry(service, client, start):
    del service
    address = start(lambda: client.wait_for_dispatcher_registration(1, 60))
    workers = start(lambda: client.wait_for_dispatcher_worker_registration(1, timeout=60))
    shutdown = start(client.wait_for_shutdown)
    client.register_dispatcher(1, "grpc://a:1")
    assert address.end() == "grpc://a:1"
    client.register_worker_for_dispatcher(dispatcher_id=1, worker_id=2)
    client.register_worker_for_dispatcher(dispatcher_id=1, worker_id=3)
    assert workers.end() is None
    client.begin_use(1, 0)
    unused = start(lambda: client.wait_until_unused(1, 60))
    client.end_use(1, 0)
    assert unused.end() is None
    client.shutdown()
    assert shutdown.end() is None
    client.shutdown()


def test_a_worker_that_is_killed_fails_the_job(service, client, start):
    connection = socket.create_connection(next(iter(service.addresses().values()))[0], 60)
    asking = start(
        lambda: registry_messages.ask(connection, _KEY, {"request": "work", "dispatcher_id": 0, "worker_id": 3})
    )
    waiting = start(lambda: client.wait_for_dispatcher_registration(0, 60))
    client.register_worker_for_dispatcher(0, 4)
    client.wait_for_dispatcher_worker_registration(0, 60)  # the dispatcher needs two workers: these two
    connection.shutdown(socket.SHUT_RDWR)
    assert str(waiting.end()) == "the compute job has failed: compute worker 3 is gone"
    assert isinstance(asking.end(), OSError)
    connection.close()


def test_another_key_is_refused_and_logged_in_one_line(service, caplog):
    with caplog.at_level(logging.WARNING, "lockstep"):
        with pytest.raises(WrongKeyError):
            ComputeClient(service.addresses(), b"o" * 32)
        # The service logs only after its answer.
        wait_for(lambda: caplog.records, "a log line of the service")
    assert {record.getMessage().rpartition(" from ")[0] for record in caplog.records} == {
        "compute service: refused a request"
    }


def test_unauthenticated_clients_do_no_harm(service, client):
    for garbage in (b"", b"GET / HTTP/1.0\r\n\r\n" + b"x" * 100, b"\xff" * 200):
        with socket.create_connection(next(iter(service.addresses().values()))[0], 60) as unauthenticated:
            unauthenticated.sendall(garbage)
    client.check()


def test_the_number_of_silent_unauthenticated_clients_is_limited(service, client):
    address = next(iter(service.addresses().values()))[0]
    with contextlib.ExitStack() as open_connections:
        clients = [open_connections.enter_context(socket.create_connection(address, 60)) for _ in range(200)]
        client.check()
        clients[0].settimeout(60)
        assert len(clients[0].recv(1 << 10, socket.MSG_WAITALL)) == 24, "the greeting, and then the end"
        clients[-1].settimeout(60)
        clients[-1].recv(24, socket.MSG_WAITALL)
        clients[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            clients[-1].recv(1)
        client.check()


def test_it_listens_on_the_requested_interface():
    service = ComputeService(1, 1, _KEY, nics=["lo"])
    try:
        assert service.addresses() == {"lo": [("127.0.0.1", service.get_port())]}
        ComputeClient(service.addresses(), _KEY).check()
    finally:
        service.shutdown()
    with pytest.raises(ValueError, match="'nothere'"):
        ComputeService(1, 1, _KEY, nics=["nothere"])
