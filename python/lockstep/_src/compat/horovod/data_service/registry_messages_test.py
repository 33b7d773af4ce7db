# Promise of this file (security.md): the data service's registry refuses wrong keys and recorded requests.

import socket
import struct
import threading
import time

import pytest

from lockstep._src.compat.horovod.data_service import registry_messages
from lockstep._src.compat.horovod.data_service.errors import WrongKeyError

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


_KEY, _OTHER_KEY = b"k" * 32, b"o" * 32


class _Tap:
    """A socket that records the bytes that are sent through it."""

    def __init__(self, connection):
        self._connection = connection
        self.sent = b""

    def sendall(self, data):
        self.sent += data
        self._connection.sendall(data)

    def recv(self, size):
        return self._connection.recv(size)


@pytest.fixture(name="ends")
def _ends():
    client, server = socket.socketpair()
    with client, server:
        client.settimeout(60)
        server.settimeout(60)
        yield client, server


def _serve(connection, key, outcome):
    side = registry_messages.ServerSide(connection, key)
    try:
        outcome.append(side.receive(10))
        side.reply({"value": 7})
    except Exception as error:
        outcome.append(error)


def _started(connection, key):
    outcome = []
    thread = threading.Thread(target=_serve, args=(connection, key, outcome), daemon=True)
    thread.start()
    return thread, outcome


def test_a_request_is_answered(ends):
    client, server = ends
    thread, outcome = _started(server, _KEY)
    assert registry_messages.ask(client, _KEY, {"request": "ping", "dispatcher_id": 3}) == {"value": 7}
    thread.join(60)
    assert outcome[0]["request"] == "ping" and outcome[0]["dispatcher_id"] == 3


def test_another_key_is_refused_on_both_sides(ends):
    client, server = ends
    thread, outcome = _started(server, _KEY)
    with pytest.raises(WrongKeyError, match="another key"):
        registry_messages.ask(client, _OTHER_KEY, {"request": "shutdown"})
    thread.join(60)
    assert isinstance(outcome[0], WrongKeyError)


def test_a_reply_without_the_key_is_rejected(ends):
    client, server = ends

    def forge():
        server.sendall(b"LSDATA1\n" + b"n" * 16)
        server.recv(1 << 16)
        body = b'{"value": "grpc://evil:1"}'
        server.sendall(struct.pack(">I", len(body)) + b"m" * 32 + body)

    threading.Thread(target=forge, daemon=True).start()
    with pytest.raises(WrongKeyError, match="reply"):
        registry_messages.ask(client, _KEY, {"request": "ping"})


def test_a_recorded_request_cannot_be_replayed(ends):
    client, server = ends
    tap = _Tap(client)
    _started(server, _KEY)
    registry_messages.ask(tap, _KEY, {"request": "shutdown"})
    again, other_server = socket.socketpair()
    with again, other_server:
        thread, outcome = _started(other_server, _KEY)
        again.sendall(tap.sent)
        thread.join(60)
        assert isinstance(outcome[0], WrongKeyError)


def test_unauthenticated_clients_cannot_make_the_server_allocate(ends):
    client, server = ends
    thread, outcome = _started(server, _KEY)
    client.sendall(struct.pack(">I", 1 << 30))
    thread.join(60)
    assert isinstance(outcome[0], registry_messages.ProtocolError)
    assert str(1 << 30) in str(outcome[0])


def test_a_request_that_comes_byte_by_byte_gets_no_more_time(ends):
    client, server = ends
    outcome = []

    def serve():
        try:
            registry_messages.ServerSide(server, _KEY).receive(0.5)
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    client.sendall(struct.pack(">I", 1000))
    while thread.is_alive() and time.monotonic() < deadline:
        client.sendall(b"x")
        time.sleep(0.05)
    assert isinstance(outcome[0], TimeoutError)


def test_another_kind_of_server_is_recognised(ends):
    client, server = ends
    server.sendall(b"SSH-2.0-OpenSSH_9.6 and more\r\n")
    with pytest.raises(registry_messages.ProtocolError, match="not a compute service"):
        registry_messages.ask(client, _KEY, {"request": "ping"})
