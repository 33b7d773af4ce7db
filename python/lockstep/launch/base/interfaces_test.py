# Promise of this file (launching.md): rank 0 listens at the address of the chosen interface.

import socket

import pytest

from lockstep.launch.base import interfaces
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.interfaces import address_of, addresses, rendezvous_host, with_port
from lockstep.launch.base.output import Console

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

# A network that is reserved for tests of devices (RFC 2544): no machine is in it.
NO_NETWORK = "198.18.0.0/15"


@pytest.mark.parametrize("choice", ["lo", "127.0.0.1", "127.0.0.0/8", "127.0.0.1/32"])
def test_an_interface_may_be_named_or_known_by_an_address_or_a_network(choice):
    assert address_of(choice) == "127.0.0.1"


def test_interfaces_that_are_up_are_listed_by_their_names():
    names = {name for _, name in socket.if_nameindex()}
    assert {name for name, _ in addresses()} <= names
    if any(str(address) == "::1" for _, address in addresses()):
        assert address_of("::1") == "::1"


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("no0", f"network interface 'no0' does not exist or is down; {socket.gethostname()} has lo (127.0.0.1)"),
        (NO_NETWORK, f"no network interface has network {NO_NETWORK}; {socket.gethostname()} has lo (127"),
        ("198.18.0.1", "no network interface has address 198.18.0.1; "),
        ("", "network interface '' does not exist or is down; "),
    ],
)
def test_an_interface_that_is_not_there_is_refused_with_those_that_are(choice, message):
    with pytest.raises(LaunchError) as refused:
        address_of(choice)
    assert str(refused.value).startswith(message)


def test_rank_0_is_met_where_the_user_says(monkeypatch):
    monkeypatch.setattr(interfaces, "_address_towards", lambda host: f"towards {host}")
    assert rendezvous_host("anything", "127.0.0.0/8", ["b"]) == "127.0.0.1"
    # A name that can be resolved is as good as an address, for other hosts as well.
    assert rendezvous_host("192.0.2.1", None, ["b"]) == "192.0.2.1"


def test_a_name_that_leads_others_to_themselves_is_none_to_meet_at(monkeypatch):
    found = {"b": None, "c": "127.0.0.1", "d": "10.0.0.1"}
    monkeypatch.setattr(interfaces, "_address_towards", found.get)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert rendezvous_host("localhost", None, ["b", "c", "d"]) == "10.0.0.1"
    assert rendezvous_host("127.0.0.2", None, ["b", "c"]) == "127.0.0.2"
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 4711 10.0.0.2 22")
    assert rendezvous_host("an-alias.invalid", None, ["b", "c"]) == "10.0.0.2"


def test_the_address_towards_a_host_is_one_of_ours():
    assert interfaces._address_towards("127.0.0.3") == "127.0.0.1"
    assert interfaces._address_towards("a-host.invalid") is None


def test_a_name_that_is_not_known_yet_is_waited_for(monkeypatch, tmp_path):
    asked = []

    def known_at_last(name, port):
        asked.append(name)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", known_at_last)
    monkeypatch.setattr(interfaces, "_LOOK_EVERY_S", 0.01)
    with open(tmp_path / "shown", "wb") as file:
        interfaces.wait_for_name("train-chief-0", Console(file.fileno(), file.fileno()))
        interfaces.wait_for_name("a" * 300, Console(file.fileno(), file.fileno()), 0.0)
    assert asked[:3] == ["train-chief-0"] * 3
    said = "[lockstep] waiting up to 60 s until the name train-chief-0 can be resolved\n"
    assert (tmp_path / "shown").read_text() == said


@pytest.mark.parametrize(("host", "wanted"), [("a", "a:1"), ("::1", "[::1]:1"), ("[::1]", "[::1]:1")])
def test_addresses_of_ipv6_stand_in_brackets_before_a_port(host, wanted):
    assert with_port(host, 1) == wanted


@pytest.mark.parametrize(
    ("name", "if_unknown", "leads"),
    [
        *(("127.0.1.1", False, True), ("::1", False, True), ("localhost", False, True), ("192.0.2.1", True, False)),
        *(("a-host.invalid", True, True), ("a-host.invalid", False, False)),
    ],
)
def test_a_name_leads_to_loopback_or_elsewhere_or_is_unknown(name, if_unknown, leads):
    assert interfaces.leads_to_loopback(name, if_unknown=if_unknown) is leads
