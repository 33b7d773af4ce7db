"""The config file and the messages of the data service with content from attackers."""

# Promise of this file (security.md): the data service's registry refuses wrong keys and recorded requests.

import json
import socket

import pytest

from lockstep._src.compat.horovod.data_service import registry_messages
from lockstep._src.compat.horovod.data_service.config import TfDataServiceConfig
from lockstep._src.compat.horovod.data_service.errors import DataServiceError
from lockstep.testing.mutations import feed

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

KEY = b"k" * registry_messages.KEY_BYTES


def test_config_file(tmp_path):
    path = tmp_path / "compute.json"
    TfDataServiceConfig(2, 4, "training", {"eth0": [("127.0.0.1", 1)]}, KEY, timeout=1).write(path)

    def reads(data):
        path.write_bytes(data)
        try:
            config = TfDataServiceConfig.read(path)
        except (ValueError, DataServiceError) as error:
            assert str(path) in str(error) or "failed" in str(data)
            raise
        assert config.timeout >= 0 and isinstance(config.key, bytes)

    seeds = [path.read_bytes()]
    assert feed("data service's config", reads, seeds, (ValueError, DataServiceError), 500) > 10


@pytest.mark.parametrize("part", ["unauthenticated", "frame of ours", "body of ours"])
def test_requests(part, monkeypatch):
    """Bytes of an unauthenticated client, and contents of frames that are signed with a wrong or with the right key."""
    # A fixed nonce: the request can then be signed and sent before the server reads.
    nonce = bytes(registry_messages._NONCE_BYTES)
    monkeypatch.setattr(registry_messages.secrets, "token_bytes", bytes)

    def reads(data):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.settimeout(10)
            data = data[: registry_messages._MAX_BODY_BYTES]
            if part == "unauthenticated":
                theirs.sendall(data)
            else:
                key = KEY if part == "body of ours" else bytes(len(KEY))
                registry_messages._send_frame(theirs, registry_messages._mac(key, b"request", nonce, data), data)
            theirs.shutdown(socket.SHUT_WR)
            assert isinstance(registry_messages.ServerSide(ours, KEY).receive(10), dict)

    body = json.dumps({"is": "addresses", "nonce": "00"}).encode()
    refused = (DataServiceError, OSError)
    if part == "body of ours":
        assert feed("data service's requests", reads, [body], refused, 300) > 10
        return
    # A wrong signature: not even well-formed requests are read.
    for data in [body] if part == "frame of ours" else [b"", b"\0\0\0\7" + bytes(32) + body]:
        with pytest.raises(refused):
            reads(data)

    def refuses(data):
        with pytest.raises(refused):
            reads(data)

    feed("data service's unauthenticated clients", refuses, [b"\0\0\0\7" + bytes(32) + body], (), 300)


def test_an_unauthenticated_client_that_announces_gigabytes_is_disconnected():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"\x7f\xff\xff\xff")
        with pytest.raises(
            registry_messages.ProtocolError, match="a message of 2147483647 bytes, wanted at most 65536"
        ):
            registry_messages.ServerSide(ours, KEY).receive(10)
