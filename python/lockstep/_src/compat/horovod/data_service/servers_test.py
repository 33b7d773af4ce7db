import logging
import socket
import threading

import pytest
import tensorflow as tf

from lockstep._src.compat.horovod.data_service import addresses, servers
from lockstep._src.compat.horovod.data_service.client import ComputeClient
from lockstep._src.compat.horovod.data_service.errors import ComputeJobError, DataServiceError

# Guards against a hang alone.
_DEADLINE_S = 60


def _listens(address):
    """Returns whether something accepts connections at `grpc://host:port`."""
    host, _, port = address.removeprefix("grpc://").partition(":")
    with socket.socket() as probe:
        probe.settimeout(_DEADLINE_S)
        return probe.connect_ex((host, int(port))) == 0


@pytest.fixture(name="loopback")
def _loopback(monkeypatch):
    """Makes servers announce the loopback address."""
    monkeypatch.setenv("LOCKSTEP_NETWORK_INTERFACES", "lo")


def test_a_dispatcher_is_registered_and_listens_inside_the_block(client):
    with servers.dispatcher(client, 1) as address:
        assert client.wait_for_dispatcher_registration(1, _DEADLINE_S) == address
        assert address.startswith(f"grpc://{addresses.own_address()}:")
        assert _listens(address)
    assert not _listens(address)


@pytest.mark.usefixtures("loopback")
def test_the_environment_chooses_the_interface_of_both_servers(client):
    with servers.dispatcher(client, 0) as address, servers.worker(address, _DEADLINE_S):
        assert address.startswith("grpc://127.0.0.1:")
        shared = tf.data.Dataset.range(9).apply(tf.data.experimental.service.distribute("parallel_epochs", address))
        assert sorted(shared.as_numpy_iterator()) == list(range(9))


def test_an_interface_that_does_not_exist_is_refused(client, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_NETWORK_INTERFACES", "nothere")
    for server in (servers.dispatcher(client, 0), servers.worker("grpc://127.0.0.1:1", 1)):
        with pytest.raises(ValueError, match="'nothere'"), server:
            pytest.fail("the block was entered")


def test_a_dispatcher_that_is_registered_elsewhere_is_refused(client):
    client.register_dispatcher(0, "grpc://elsewhere:1")
    with pytest.raises(ValueError, match="dispatcher 0"), servers.dispatcher(client, 0):
        pytest.fail("the block was entered")
    with pytest.raises(IndexError, match="2"), servers.dispatcher(client, 2):
        pytest.fail("the block was entered")


def test_a_dispatcher_without_a_compute_job_is_an_error(service, client):
    service.shutdown()
    with pytest.raises(DataServiceError, match="the compute service at .* is gone"), servers.dispatcher(client, 0):
        pytest.fail("the block was entered")


def test_a_dispatcher_waits_until_its_workers_have_stopped(client, start):
    entered, leaving, left = threading.Event(), threading.Event(), threading.Event()

    def dispatch():
        with servers.dispatcher(client, 0):
            entered.set()
            leaving.wait(_DEADLINE_S)
        left.set()

    running = start(dispatch)
    assert entered.wait(_DEADLINE_S)
    working = start(lambda: client.work(0, 7))
