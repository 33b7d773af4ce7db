"""Network interfaces of this machine: the address that a user has chosen, and the one at which other hosts reach it.

A choice is a value of LOCKSTEP_INTERFACE: an interface's name (eth0), one of its addresses, or a network (10.0.0.0/8).
"""

import contextlib
import ctypes
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Sequence

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console

VARIABLE = "LOCKSTEP_INTERFACE"
NAME_TIMEOUT_S = 60.0
_LOOK_EVERY_S = 1.0
# Any port will do: nothing is sent to it.
_PROBED_PORT = 9
_IFF_UP = 0x1

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class _IfAddrs(ctypes.Structure):
    """The first fields of `struct ifaddrs` of getifaddrs(3)."""


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def addresses() -> list[tuple[str, Address]]:
    """Returns the interfaces that are up, as pairs of a name and an address; IPv4 addresses come first."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "getifaddrs")
    found = []
    try:
        entry = first
        while entry:
            address = _read(entry.contents.address)
            if address is not None and entry.contents.flags & _IFF_UP:
                found.append((entry.contents.name.decode(errors="replace"), address))
            entry = entry.contents.next
    finally:
        libc.freeifaddrs(first)
    return sorted(found, key=lambda pair: pair[1].version)


def _read(where: int | None) -> Address | None:
    """Reads the address in a `struct sockaddr` of IPv4 or IPv6; None for other families."""
    if not where:
        return None
    family = int.from_bytes(ctypes.string_at(where, 2), sys.byteorder)
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(ctypes.string_at(where + 4, 4))
    if family == socket.AF_INET6:
        return ipaddress.IPv6Address(ctypes.string_at(where + 8, 16))
    return None


def is_name(choice: str) -> bool:
    """Returns whether a choice is an interface's name, and no address or network."""
    try:
        ipaddress.ip_network(choice, strict=False)
    except ValueError:
        return True
    return False


def interface_of(choice: str) -> tuple[str, str]:
    """Returns the interface of this machine that a choice means: its name, and one of its addresses.

    Raises:
      LaunchError: this machine has no such interface.
    """
    there = addresses()
    if not is_name(choice):
        network = ipaddress.ip_network(choice, strict=False)
        for name, address in there:
            if address in network:
                return name, str(address)
        what = "network" if "/" in choice else "address"
        raise LaunchError(f"no network interface has {what} {choice}; {_described(there)}")
    for name, address in there:
        if name == choice and not (address.version == 6 and address.is_link_local):
            return name, str(address)
    raise LaunchError(f"network interface {choice!r} does not exist or is down; {_described(there)}")


def address_of(choice: str) -> str:
    """Returns the address of this machine that a choice means; LaunchError if there is none."""
    return interface_of(choice)[1]


def _described(there: Sequence[tuple[str, Address]]) -> str:
    return f"{socket.gethostname()} has " + ", ".join(f"{name} ({address})" for name, address in there)


def rendezvous_host(name: str, choice: str | None, others: Sequence[str]) -> str:
    """Returns the name or address of this machine, which has rank 0, at which workers of other hosts reach it.

    Args:
      name: This machine's name, as the user wrote it.
      choice: Its network interface, if one was chosen.
      others: Names of the other hosts.

    Raises:
      LaunchError: the chosen interface is not there.
    """
    if choice:
        return address_of(choice)
    # A name that this machine cannot resolve would not help the workers here.
    if not leads_to_loopback(name, if_unknown=True):
        return name
    # /etc/hosts may map a machine's own name to loopback, which only the machine itself can use. If the launcher came
    # over ssh, SSH_CONNECTION has the address at which it reached this machine.
    found = [_address_towards(other) for other in others] + os.environ.get("SSH_CONNECTION", "").split()[2:3]
    for address in found:
        if address is not None and not ipaddress.ip_address(address).is_loopback:
            return address
    return name


def address_towards(host: str, choice: str | None) -> str:
    """Returns the name or address of this machine at which another host reaches it.

    Raises:
      LaunchError: the chosen interface is not there.
    """
    if choice:
        return address_of(choice)
    # If only ssh knows the host's name, the address cannot be found out.
    return _address_towards(host) or socket.gethostname()


def wait_for_name(name: str, console: Console, seconds: float = NAME_TIMEOUT_S) -> None:
    """Waits until a host's name can be resolved: a cluster may publish it a little after it starts the host.

    After the timeout it returns as well; the code that then uses the name reports the error.

    Args:
      name: The name, or an address.
      console: Shows a message if it has to wait.
      seconds: The timeout.
    """
    deadline, has_said = time.monotonic() + seconds, False
    while not _is_known(name) and time.monotonic() < deadline:
        if not has_said:
            console.message(f"waiting up to {seconds:g} s until the name {name} can be resolved")
        has_said = True
        time.sleep(_LOOK_EVERY_S)


def _is_known(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except ValueError:  # It is longer than a name can be.
        return True
    except OSError:
        return False
    return True


def leads_to_loopback(name: str, if_unknown: bool) -> bool:
    """Returns whether a host's name or address is a loopback address; `if_unknown` if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except (OSError, ValueError):
        return if_unknown
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def _address_towards(host: str) -> str | None:
    """Returns the address from which packets to a host would be sent."""
    with contextlib.suppress(OSError, ValueError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, _PROBED_PORT, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                own, _, *more = probe.getsockname()
                # A link-local address needs its interface. Hosts of a job are taken to name their interfaces alike.
                return f"{own}%{socket.if_indextoname(more[1])}" if more and more[1] else own
    return None


def with_port(host: str, port: int) -> str:
    """Returns host:port, or [v6]:port."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
