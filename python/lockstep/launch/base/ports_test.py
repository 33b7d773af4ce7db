import socket

import pytest

from lockstep.launch.base.ports import free_ports

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
