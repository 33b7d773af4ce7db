"""The addresses under which other hosts reach this host.

Loopback addresses are used only if a host has no others, because on another host they mean that other host itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from lockstep.launch.base import interfaces
from lockstep.launch.base.errors import LaunchError

# Environment variables with interfaces, separated by commas, each given by name, address or network. The first variable
# is this project's own. `horovodrun --network-interfaces` sets the others; Horovod's programs know the last one.
VARIABLES = ("LOCKSTEP_NETWORK_INTERFACES", interfaces.VARIABLE, "HOROVOD_GLOO_IFACE")

# Nothing is sent to this address (RFC 5737); the kernel only looks up the route.
_ELSEWHERE = "192.0.2.1"


def chosen_interfaces(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """Returns the interfaces that the environment requests; None if it requests none."""
    for variable in VARIABLES:
        choices = [choice.strip() for choice in environment.get(variable, "").split(",") if choice.strip()]
        if choices:
            return choices
    return None


def reachable_addresses(choices: Sequence[str] | None = None) -> dict[str, str]:
    """Returns IPv4 addresses of this host by interface; the first one is most likely reachable from other hosts.

    Args:
      choices: the interfaces that may be used, each given by its name, one of its addresses or a network
        ("10.0.0.0/8"); None for all.

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
    """Returns name and IPv4 address of the chosen interface. Raises ValueError if there is none."""
    try:
        name, address = interfaces.interface_of(choice)
    except LaunchError as error:
        raise ValueError(str(error)) from None
    if ":" in address:
        raise ValueError(
            f"network interface {choice}: got {name}'s address {address}, wanted an IPv4 address; set {VARIABLES[0]} "
            "to choose an interface for the data service only"
        )
    return name, address


def own_address(choices: Sequence[str] | None = None) -> str:
    """Returns the address that servers of this process announce; arguments and errors as in `reachable_addresses`."""
    return next(iter(reachable_addresses(choices).values()))


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _default_route_address() -> str:
    return interfaces.address_towards(_ELSEWHERE, None)
