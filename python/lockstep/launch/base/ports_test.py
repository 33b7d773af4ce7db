import os
import socket

import pytest

from lockstep.launch.base.ports import free_ports, listener_at

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def test_free_ports_are_distinct_and_can_be_listened_on():
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            listener.listen()


def test_free_ports_of_other_addresses():
    assert len(free_ports(2, "")) == 2
    assert len(free_ports(2, "::1")) == 2


def test_a_listener_is_named_unless_it_cannot_be_seen(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listener_at(port).endswith(f"(pid {os.getpid()})")
        assert listener_at(port, tmp_path) == ""
    assert listener_at(port) == ""
