import os
import socket

import pytest

from lockstep._src.doctor import network

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def test_a_busy_port_is_a_problem_that_names_its_process():
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        finding = network.port(number, "127.0.0.1", "TF_CONFIG")
        assert finding.state == "problem"
        assert finding.seen.startswith("of TF_CONFIG: in use by ") and finding.seen.endswith(f"(pid {os.getpid()})")
        assert "choose another port" in finding.advice
    assert network.port(number, "127.0.0.1").seen == "of --port: free"


def test_an_address_of_another_machine_is_not_checked():
    finding = network.port(8860, "192.0.2.77", "TF_CONFIG")
    assert finding.state == "ok" and "192.0.2.77 is not an address of this machine" in finding.seen


@pytest.mark.parametrize(("broken", "state"), [("IPv6", "ok"), ("IPv4", "problem"), (None, "ok")])
def test_loopback_works_with_one_family(monkeypatch, broken, state):
    families = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6}
    real = socket.socket

    def make(family=socket.AF_INET, *more):
        if broken and family == families[broken]:
            raise OSError(97, "Address family not supported by protocol")
        return real(socket.AF_INET if family == socket.AF_INET6 else family, *more)

    monkeypatch.setattr(socket, "socket", make)
    if broken is None:
        monkeypatch.undo()
        assert network.loopback().state == "ok"
        return
    finding = network.loopback()
    assert finding.state == state and f"{broken} fails: Address family not supported" in finding.seen
    assert finding.advice


def test_a_name_that_nobody_knows_is_a_warning(monkeypatch):
    def unknown(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "Name or service not known" in network.own_name().seen and network.own_name().state == "warning"
