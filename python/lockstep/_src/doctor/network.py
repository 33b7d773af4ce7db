"""Checks of this machine's network: interfaces, IPv4 and IPv6, its own name, and ports."""

import errno
import socket
from pathlib import Path

from lockstep._src.doctor.findings import Finding
from lockstep.launch.base import interfaces
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.ports import free_ports, listener_at


def loopback() -> Finding:
    """Connects this machine with itself, as ranks of one host do at the rendezvous."""
    works = {}
    for name, family, address in (("IPv4", socket.AF_INET, "127.0.0.1"), ("IPv6", socket.AF_INET6, "::1")):
        try:
            with socket.socket(family) as server, socket.socket(family) as client:
                server.bind((address, 0))
                server.listen()
                client.settimeout(5)
                client.connect(server.getsockname())
            works[name] = ""
        except OSError as error:
            works[name] = error.strerror or str(error)
    seen = "; ".join(f"{name} {f'fails: {why}' if why else 'works'}" for name, why in works.items())
    if works["IPv4"]:
        return Finding("loopback", "problem", seen, "switch the interface on (ip link set lo up)")
    if works["IPv6"]:
        advice = "nothing, if hosts have IPv4 addresses: Lockstep uses them. --hosts cannot name [v6] addresses here"
        return Finding("loopback", "ok", seen, advice)
    return Finding("loopback", "ok", seen)


def network_interfaces() -> Finding:
    """Lists the interfaces at which other hosts may reach this one."""
    found = [(name, address) for name, address in interfaces.addresses() if not address.is_loopback]
    usable = [f"{name} {address}" for name, address in found if not address.is_link_local]
    if not usable:
        advice = "jobs of one host run; for several hosts, connect this one to a network"
        return Finding("interfaces", "warning", "only loopback", advice)
    names = {name for name, address in found if not address.is_link_local}
    advice = "" if len(names) == 1 else "if hosts share only one of these networks, choose it with --interface"
    return Finding("interfaces", "ok", ", ".join(usable), advice)


def own_name() -> Finding:
    """Resolves this machine's name, by which other hosts may reach rank 0."""
    name = socket.gethostname()
    try:
        found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)})
    except (OSError, ValueError) as error:
        advice = (
            "jobs of one host run; for several hosts add the name to DNS or /etc/hosts, or name addresses in --hosts"
        )
        return Finding("host name", "warning", f"{name} cannot be resolved: {error}", advice)
    return Finding("host name", "ok", f"{name} is {', '.join(found)}")


def ports() -> Finding:
    """Looks for a free port in the range from which the launcher takes its jobs' ports."""
    try:
        (port,) = free_ports(1)
    except LaunchError as error:
        return Finding("free ports", "problem", str(error), "end processes that hold ports (ss -ltnp)")
    return Finding("free ports", "ok", f"{port} and others")


def port(number: int, host: str = "", what: str = "--port", proc: Path = Path("/proc")) -> Finding:
    """Tries to listen at a port.

    Args:
      number: The port.
      host: The address; empty: all addresses.
      what: Where the port was named, for the message.
      proc: The folder of processes.
    """
    name = f"port {number}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, number))
            probe.listen()
    except (OverflowError, ValueError) as error:  # a port out of range; a host that is not a name
        return Finding(name, "problem", f"of {what}: {error}", "name a host, and a port from 1024 to 65535")
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return Finding(name, "ok", f"of {what}: {host} is not an address of this machine, so rank 0 is on another")
        if error.errno == errno.EADDRINUSE:
            seen = f"of {what}: in use by {listener_at(number, proc) or 'a process that this user cannot see'}"
            advice = "end that process, or choose another port: a job whose rank 0 listens there cannot start"
            return Finding(name, "problem", seen, advice)
        return Finding(name, "problem", f"of {what}: {error.strerror}", "choose a port from 1024 to 65535")
    return Finding(name, "ok", f"of {what}: free")
