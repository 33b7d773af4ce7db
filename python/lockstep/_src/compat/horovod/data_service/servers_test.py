import gc
import logging
import socket
import threading

import pytest
import tensorflow as tf

from lockstep._src.compat.horovod.data_service import addresses, servers
from lockstep._src.compat.horovod.data_service.errors import ComputeJobError, DataServiceError

# Only guards against a hang.
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
    with (
        pytest.raises(ValueError, match="Dispatcher with id 0 .* different address grpc:..elsewhere:1"),
        servers.dispatcher(client, 0),
    ):
        pytest.fail("the block was entered")
    with pytest.raises(IndexError, match=r"within \[0..1\]: 2"), servers.dispatcher(client, 2):
        pytest.fail("the block was entered")


def test_a_dispatcher_without_a_compute_job_is_an_error(service, client):
    service.shutdown()
    with pytest.raises(DataServiceError, match="the compute service at .* is gone"), servers.dispatcher(client, 0):
        pytest.fail("the block was entered")


def test_a_dispatcher_stops_after_its_workers(client, start):
    leaving = threading.Event()

    def dispatch():
        with servers.dispatcher(client, 0):
            leaving.wait(_DEADLINE_S)

    dispatching = start(dispatch)
    address = client.wait_for_dispatcher_registration(0, _DEADLINE_S)
    client.register_worker_for_dispatcher(0, 7)
    working = start(lambda: client.work(0, 7))
    leaving.set()
    assert working.end() is False, "the dispatcher ends, but the job does not"
    assert _listens(address) and not dispatching.has_ended
    ending = start(lambda: client.end_worker(0, 7))
    assert dispatching.end() is None
    assert not _listens(address)
    client.shutdown()
    assert ending.end() is None


def test_a_dispatcher_stops_though_a_worker_does_not(client, monkeypatch):
    monkeypatch.setattr(servers, "STOP_TIMEOUT_S", 0.1)
    with servers.dispatcher(client, 0) as address:
        client.register_worker_for_dispatcher(0, 7)

    monkeypatch.undo()
    assert not _listens(address)


def test_dispatchers_stop_with_a_job_that_has_failed(service, client):
    with servers.dispatcher(client, 0) as first, servers.dispatcher(client, 1) as second:
        client.register_worker_for_dispatcher(0, 7)
        service.fail("compute worker 3 is gone")
        with pytest.raises(ComputeJobError, match="compute worker 3 is gone"):
            client.check()
    assert not _listens(first) and not _listens(second)


def test_a_dispatcher_stops_with_a_job_that_is_gone(service, client):
    with servers.dispatcher(client, 0) as address:
        service.shutdown()
    assert not _listens(address)


def test_an_error_in_the_block_retires_the_dispatcher_without_a_wait(client, monkeypatch):
    monkeypatch.setattr(client, "wait_until_stopped", lambda *_: pytest.fail("it waited"))
    for dispatcher_id, error in enumerate((KeyError("of the program"), KeyboardInterrupt())):
        with pytest.raises(type(error)) as raised, servers.dispatcher(client, dispatcher_id) as address:
            client.register_worker_for_dispatcher(dispatcher_id, 7)
            raise error
        assert raised.value is error
        assert not _listens(address)
        assert client.work(dispatcher_id, 7) is False, "the dispatcher has not retired"


def test_a_dispatcher_knows_the_worker_inside_the_block():
    dispatcher = tf.data.experimental.service.DispatchServer()
    with servers.worker(dispatcher.target, _DEADLINE_S):
        assert dispatcher._num_workers() == 1
        with servers.worker(dispatcher.target, _DEADLINE_S):
            assert dispatcher._num_workers() == 2


def test_a_dispatcher_that_does_not_answer_is_an_error(caplog):
    said = "the dispatcher at 127.0.0.1:1 has not answered within 0.1 s: .*refused"
    with pytest.raises(tf.errors.OpError, match=said), servers.worker("grpc://127.0.0.1:1", 0.1):
        pytest.fail("the block was entered")
    assert "has not stopped" not in caplog.text


def test_a_worker_that_cannot_start_raises_tensorflows_error(monkeypatch):
    dispatcher = tf.data.experimental.service.DispatchServer()
    failure = tf.errors.UnknownError(None, None, "Could not start gRPC server")

    def fail(server):
        raise failure

    monkeypatch.setattr(tf.data.experimental.service.WorkerServer, "start", fail)
    with pytest.raises(tf.errors.UnknownError) as raised, servers.worker(dispatcher.target, _DEADLINE_S):
        pytest.fail("the block was entered")
    assert raised.value is failure
    del raised
    failure.__traceback__ = None  # has the frames that hold the server
    gc.collect()  # destroys no server that has not started, which would end this process


@pytest.mark.parametrize("what", ["dispatcher", "worker"])
def test_a_server_that_does_not_stop_is_logged(monkeypatch, caplog, what):
    class Server:
        """A server whose end is an event."""

        ended = threading.Event()
        calls = []

        def _stop(self):
            self.calls.append("stop")

        def join(self):
            self.calls.append("join")
            self.ended.wait(_DEADLINE_S)

    monkeypatch.setattr(servers, "STOP_TIMEOUT_S", 0.05)
    server = Server()
    with caplog.at_level(logging.WARNING, "lockstep"):
        servers._stop(server, what)
    assert [record.getMessage() for record in caplog.records] == [
        f"the data service's {what} has not stopped within 0.05 s"
    ]
    server.ended.set()
    caplog.clear()
    monkeypatch.undo()
    servers._stop(server, what)
    assert not caplog.records and server.calls == ["stop", "join"] * 2
