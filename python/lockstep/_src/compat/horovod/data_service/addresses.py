"""Under which addresses other hosts reach this one.

Loopback addresses are named only where a host has no other: to another host they mean that host itself.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from lockstep.launch.base import interfaces
from lockstep.launch.base.errors import LaunchError

# Interfaces, separated by commas, each by its name, an address or a network: ours first, then what
# horovodrun --network-interfaces sets, of which programs of Horovod's know the last one.
VARIABLES = ("LOCKSTEP_NETWORK_INTERFACES", interfaces.VARIABLE, "HOROVOD_GLOO_IFACE")

# Never sent to: the kernel only looks up the route (RFC 5737).
_ELSEWHERE = ("192.0.2.1", 9)


def chosen_interfaces(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """The interfaces that the environment asks for; None where it leaves the choice to us."""
    for variable in VARIABLES:
        choices = [choice.strip() for choice in environment.get(variable, "").split(",") if choice.strip()]
        if choices:
            return choices
    return None


def reachable_addresses(choices: Sequence[str] | None = None) -> dict[str, str]:
    """IPv4 addresses of this host by interface, the one that other hosts most likely reach first.

    Args:
      choices: the interfaces that may be used, each by its name, one of its addresses or a network ("10.0.0.0/8"); all
        by default.

    Raises:
      ValueError: an interface of `choices` does not exist, is down, or has no IPv4 address.
    """
    if choices is not None:
        return dict(_chosen(choice) for choice in choices)
    found: dict[str, str] = {}
    for name, address in interfaces.addresses():
        if address.version == 4:
            found.setdefault(name, str(address))
    routable = {name: address for name, address in found.items() if not _is_loopback(address)}
    default = _default_route_address()
    ordered = sorted(routable.items(), key=lambda item: item[1] != default)
    return dict(ordered) or found or {"lo": "127.0.0.1"}


def _chosen(choice: str) -> tuple[str, str]:
    """The name and the IPv4 address of the interface that a choice means; ValueError where there is none."""
    try:
        name, address = interfaces.interface_of(choice)
    except LaunchError as error:
        raise ValueError(str(error)) from None
    if ":" in address:
        raise ValueError(
            f"network interface {choice}: got {name}'s address {address}, wanted one of IPv4; {VARIABLES[0]} chooses "
            "for the data service alone"
        )
    return name, address


def own_address(choices: Sequence[str] | None = None) -> str:
    """The address under which servers of this process are announced; arguments and errors of `reachable_addresses`."""
    return next(iter(reachable_addresses(choices).values()))


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _default_route_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return None
        return str(probe.getsockname()[0])
