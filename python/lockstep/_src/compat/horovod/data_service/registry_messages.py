"""Requests and replies between the registry and its clients: authenticated JSON, never pickled objects.

A connection carries one request.

    server -> client   magic (8 bytes), nonce (16 bytes)
    client -> server   frame of the request
    server -> client   frame of the reply, or an empty frame for a request whose MAC is wrong

    frame: length of the body (4 bytes, big endian), MAC (32 bytes), body (UTF-8 JSON, an object)

A MAC is HMAC-SHA-256 with the key of the config file. The MAC of a request covers the server's nonce and the client's
own nonce (`nonce` in the body). The MAC of a reply covers the request's MAC. Therefore neither can be used again. An
empty frame consists of the length 0 only.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from lockstep._src.compat.horovod.data_service.errors import DataServiceError, WrongKeyError

KEY_BYTES = 32
_MAGIC = b"LSDATA1\n"
_NONCE_BYTES = 16
_MAC_BYTES = 32
_LENGTH = struct.Struct(">I")
# Far above the size of any request. It limits the memory that an unauthenticated connection can use.
_MAX_BODY_BYTES = 1 << 16


class ProtocolError(DataServiceError):
    """The peer does not speak this protocol."""


def new_key() -> bytes:
    """Returns a random key."""
    return secrets.token_bytes(KEY_BYTES)


class ServerSide:
    """The server's end of a connection.

    Args:
      connection: a connection that was just accepted; the caller closes it.
      key: the service's key.
    """

    def __init__(self, connection: socket.socket, key: bytes):
        self._connection = connection
        self._key = key
        self._request_mac = b""

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Receives and returns the request.

        Args:
          timeout_s: the time in seconds within which the whole request must arrive.

        Raises:
          WrongKeyError: the client does not know the key; it has received an empty frame.
          ProtocolError, OSError: as in `_receive_frame`.
        """
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._connection.sendall(_MAGIC + nonce)
        mac, body = _receive_frame(self._connection, time.monotonic() + timeout_s)
        if not hmac.compare_digest(mac, _mac(self._key, b"request", nonce, body)):
            self._connection.sendall(_LENGTH.pack(0))
            raise WrongKeyError("the request is signed with another key")
        self._request_mac = mac
        return _parse(body)

    def reply(self, reply: Mapping[str, Any]) -> None:
        """Sends the reply to the received request."""
        body = json.dumps(reply).encode()
        _send_frame(self._connection, _mac(self._key, b"reply", self._request_mac, body), body)


def ask(connection: socket.socket, key: bytes, request: Mapping[str, Any]) -> dict[str, Any]:
    """Sends a request over a new connection, and returns the reply.

    Raises:
      WrongKeyError: the server has another key.
      ProtocolError: the server is not a compute service.
      OSError: the connection broke.
    """
    greeting = _receive(connection, len(_MAGIC) + _NONCE_BYTES)
    if greeting[: len(_MAGIC)] != _MAGIC:
        raise ProtocolError("the server that answered is not a compute service")
    body = json.dumps({**request, "nonce": secrets.token_hex(_NONCE_BYTES)}).encode()
    request_mac = _mac(key, b"request", greeting[len(_MAGIC) :], body)
    _send_frame(connection, request_mac, body)
    reply_mac, reply = _receive_frame(connection)
    if not reply:
        raise WrongKeyError("the compute service has another key")
    if not hmac.compare_digest(reply_mac, _mac(key, b"reply", request_mac, reply)):
        raise WrongKeyError("the reply is signed with another key")
    return _parse(reply)


def keep_alive(connection: socket.socket) -> None:
    """Makes a connection break within a minute if the other host vanishes, even if nothing is sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def _mac(key: bytes, kind: bytes, salt: bytes, body: bytes) -> bytes:
    return hmac.digest(key, b"%b %b %b" % (kind, salt, body), "sha256")


def _send_frame(connection: socket.socket, mac: bytes, body: bytes) -> None:
    if len(body) > _MAX_BODY_BYTES:
        raise ValueError(f"got a message of {len(body)} bytes, wanted at most {_MAX_BODY_BYTES}")
    connection.sendall(_LENGTH.pack(len(body)) + mac + body)


def _receive_frame(connection: socket.socket, until: float | None = None) -> tuple[bytes, bytes]:
    """Receives a frame, and returns MAC and body; both are empty for an empty frame.

    If `until` is given, it is the deadline by time.monotonic, in place of the connection's timeout.

    Raises:
      ProtocolError: the frame is longer than the largest message.
      OSError: the connection broke, or timed out.
    """
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, until))
    if length > _MAX_BODY_BYTES:
        raise ProtocolError(f"got a message of {length} bytes, wanted at most {_MAX_BODY_BYTES}")
    if length == 0:
        return b"", b""
    return _receive(connection, _MAC_BYTES, until), _receive(connection, length, until)


def _receive(connection: socket.socket, size: int, until: float | None = None) -> bytes:
    received = bytearray()
    while len(received) < size:
        if until is not None:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError("the peer is too slow")
            connection.settimeout(left)
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("the peer closed the connection")
        received += part
    return bytes(received)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"got a message that is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ProtocolError(f"got a message of type {type(parsed).__name__}, wanted a JSON object")
    return parsed
