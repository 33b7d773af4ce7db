"""The service for the workers of an elastic job, on a selector of the test. Clients are `Channel`s over TCP."""

import selectors
import socket
import time

import pytest

from lockstep.launch.base.elastic_wire import Channel
from lockstep.launch.elastic import worker_service
from lockstep.launch.elastic.worker_service import WorkerService
from lockstep.testing.launching import DEADLINE_S

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

SECRET = "deadbeef" * 8


class Client:
    """The worker's end of a connection."""

    def __init__(self, address, secret=SECRET):
        host, _, port = address.rpartition(":")
        self.connection = socket.create_connection((host, int(port)))
        self.connection.setblocking(False)
        self.channel, self.heard, self.is_open = Channel(secret, False), [], True

    def say(self, **message):
        self.channel.say(message)

    def move(self):
        """Receives and sends what is possible without waiting."""
        try:
            while self.is_open and (data := self.connection.recv(1 << 16)):
                self.heard += self.channel.feed(data)
            self.is_open = False
        except BlockingIOError:
            pass
        except ConnectionError:
            self.is_open = False
        if self.is_open and self.channel.outgoing:
            sent = self.connection.send(self.channel.outgoing)
            self.channel.outgoing = self.channel.outgoing[sent:]


class Service:
    """A service with its selector and the messages that it has heard."""

    def __init__(self):
        self.heard, self.selector, self.clients = [], selectors.DefaultSelector(), []
        self.service = WorkerService(SECRET, self.selector, lambda number, said: self.heard.append((number, said)))

    def connect(self, address=None, secret=SECRET):
        self.clients.append(Client(address or self.service.address, secret))
        return self.clients[-1]

    def until(self, condition):
        """Runs the service and the clients until a condition is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline
            for key, events in self.selector.select(0.01):
                if key.fileobj in self.selector.get_map():
                    key.data(events)
            for client in self.clients:
                client.move()


@pytest.fixture
def job():
    """Yields a service; nothing of it stays in the selector after its block."""
    job = Service()
    with job.selector:
        with job.service:
            yield job
        assert not job.selector.get_map()
    for client in job.clients:
        client.connection.close()


def test_workers_are_heard_by_their_numbers_and_answered(job):
    first, second = job.connect(), job.connect()
    first.say(**{"is": "ready", "worker": 4})
    second.say(**{"is": "ready", "worker": 7})
    job.until(lambda: len(job.heard) == 2)
    assert sorted(job.heard) == [(number, {"is": "ready", "worker": number}) for number in (4, 7)]
    job.service.say(7, {"is": "removed"})
    job.until(lambda: second.heard)
    assert (first.heard, second.heard) == ([], [{"is": "removed"}])


def test_the_number_of_a_connection_is_that_of_its_first_message(job):
    client = job.connect()
    for number in (4, 5):
        client.say(**{"is": "ready", "worker": number})
    job.until(lambda: len(job.heard) == 2)
    assert [number for number, _ in job.heard] == [4, 4]


@pytest.mark.parametrize("worker", [None, "4", 4.0, True])
def test_messages_without_a_number_are_not_heard(job, worker):
    client = job.connect()
    client.say(**{"is": "ready", "worker": worker})
    client.say(**{"is": "ready", "worker": 4, "second": True})
    job.until(lambda: job.heard)
    assert job.heard == [(4, {"is": "ready", "worker": 4, "second": True})]


def test_a_message_for_a_worker_without_a_connection_is_dropped(job):
    job.service.say(4, {"is": "removed"})
    client = job.connect()
    client.say(**{"is": "ready", "worker": 4})
    job.until(lambda: job.heard)
    job.service.say(4, {"is": "changed"})
    job.until(lambda: client.heard)
    assert client.heard == [{"is": "changed"}]


def test_a_long_message_is_sent_in_parts(job):
    client = job.connect()
    client.say(**{"is": "ready", "worker": 4})
    job.until(lambda: job.heard)
    for number in range(200):
        job.service.say(4, {"is": "changed", "at": number, "text": "x" * 50_000})
    job.until(lambda: len(client.heard) == 200)
    assert [message["at"] for message in client.heard] == list(range(200))


def test_a_peer_that_does_not_know_the_secret_is_dropped_unheard(job):
    stranger = job.connect(secret="guess")
    stranger.say(**{"is": "ready", "worker": 4})
    job.until(lambda: not stranger.is_open)
    assert job.heard == []


@pytest.mark.parametrize("data", [b"GET / HTTP/1.0\r\n\r\n", b"x" * 100_000], ids=["another protocol", "no line"])
def test_a_peer_that_speaks_another_protocol_is_dropped(job, data):
    stranger = job.connect()
    stranger.channel.outgoing = data
    job.until(lambda: not stranger.is_open)
    assert job.heard == []


def test_a_peer_that_leaves_is_forgotten(job):
    listening = len(job.selector.get_map())
    client = job.connect()
    client.say(**{"is": "ready", "worker": 4})
    job.until(lambda: job.heard)
    client.connection.close()
    job.clients.clear()
    job.until(lambda: len(job.selector.get_map()) == listening)


def test_of_too_many_unauthenticated_peers_the_oldest_is_dropped_and_no_worker(job, monkeypatch):
    monkeypatch.setattr(worker_service, "_MAX_UNAUTHENTICATED", 2)
    worker = job.connect()
    worker.say(**{"is": "ready", "worker": 4})
    job.until(lambda: job.heard)
    strangers = []
    for _ in range(3):
        strangers.append(job.connect())
        # Its nonce shows that it was accepted.
        job.until(lambda: strangers[-1].channel.outgoing == b"" and strangers[-1].channel._key)
    job.until(lambda: not strangers[0].is_open)
    assert [client.is_open for client in (*strangers, worker)] == [False, True, True, True]


def test_workers_on_other_hosts_have_a_port_that_is_opened_once(job):
    port = job.service.port_outside()
    assert job.service.port_outside() == port
    client = job.connect(f"127.0.0.2:{port}")
    client.say(**{"is": "ready", "worker": 9})
    job.until(lambda: job.heard)
    assert job.heard == [(9, {"is": "ready", "worker": 9})]
