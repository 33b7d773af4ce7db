import ipaddress

import pytest

from lockstep._src.compat.horovod.data_service import addresses
from lockstep.launch.base import interfaces

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def _with(monkeypatch, found, default=None):
    there = [(name, ipaddress.ip_address(address)) for name, address in found]
    monkeypatch.setattr(interfaces, "addresses", lambda: there)
    monkeypatch.setattr(addresses, "_default_route_address", lambda: default)


def test_loopback_is_left_out_and_the_default_route_comes_first(monkeypatch):
    _with(monkeypatch, [("lo", "127.0.0.1"), ("ib0", "10.1.0.4"), ("eth0", "10.0.0.4")], default="10.0.0.4")
    assert list(addresses.reachable_addresses().items()) == [("eth0", "10.0.0.4"), ("ib0", "10.1.0.4")]
    assert addresses.own_address() == "10.0.0.4"


def test_loopback_is_named_where_there_is_nothing_else(monkeypatch):
    _with(monkeypatch, [("lo", "127.0.0.1")])
    assert addresses.own_address() == "127.0.0.1"
    _with(monkeypatch, [])
    assert addresses.own_address() == "127.0.0.1"


def test_chosen_interfaces_are_used_in_their_order(monkeypatch):
    _with(monkeypatch, [("lo", "127.0.0.1"), ("eth0", "10.0.0.4"), ("ib0", "10.1.0.4")], default="10.0.0.4")
    assert addresses.own_address(["ib0", "eth0"]) == "10.1.0.4"
    assert addresses.reachable_addresses(["lo"]) == {"lo": "127.0.0.1"}


def test_a_chosen_interface_that_is_not_there_is_refused_with_those_that_are(monkeypatch):
    _with(monkeypatch, [("eth0", "10.0.0.4")])
    with pytest.raises(ValueError, match=r"'ib0' does not exist.*eth0 \(10\.0\.0\.4\)"):
        addresses.reachable_addresses(["eth0", "ib0"])


def test_an_address_or_a_network_chooses_the_interface_that_has_it(monkeypatch):
    for choice in ("127.0.0.1", "127.0.0.0/8"):
        assert addresses.reachable_addresses([choice]) == {"lo": "127.0.0.1"}
    with pytest.raises(ValueError, match=r"no network interface has network 198\.18\.0\.0/15; .*lo \(127"):
        addresses.reachable_addresses(["198.18.0.0/15"])
    _with(monkeypatch, [("eth0", "10.0.0.4"), ("eth0", "192.168.0.4"), ("ib0", "fd00::4"), ("lo", "::1")])
    assert addresses.reachable_addresses() == {"eth0": "10.0.0.4"}
    assert addresses.own_address(["192.168.0.0/16"]) == "192.168.0.4"
    for choice in ("::1", "ib0"):
        with pytest.raises(ValueError, match="wanted an IPv4 address"):
            addresses.own_address([choice])


# Promise (horovod.md): stall times come from the environment, and networks name interfaces.
def test_a_network_that_horovodrun_exports_chooses():
    choices = addresses.chosen_interfaces({"LOCKSTEP_NETWORK_INTERFACES": "127.0.0.0/8"})
    assert choices == ["127.0.0.0/8"]
    assert addresses.own_address(choices) == "127.0.0.1"


def test_the_environment_chooses():
    assert addresses.chosen_interfaces({}) is None
    assert addresses.chosen_interfaces({"HOROVOD_GLOO_IFACE": "eth0"}) == ["eth0"]
    assert addresses.chosen_interfaces({"HOROVOD_GLOO_IFACE": "eth0", "LOCKSTEP_INTERFACE": "10.0.0.0/8"}) == [
        "10.0.0.0/8"
    ]
    both = {"LOCKSTEP_NETWORK_INTERFACES": "ib0, ib1", "HOROVOD_GLOO_IFACE": "eth0"}
    assert addresses.chosen_interfaces(both) == ["ib0", "ib1"]


def test_this_host_has_an_address():
    assert all(address.count(".") == 3 for address in addresses.reachable_addresses().values())
