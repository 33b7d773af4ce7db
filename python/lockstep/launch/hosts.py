"""Which hosts a job may use, each with its slots: how many workers it takes.

Workers of this version are on one machine, this one; under which names it is called does not matter.
"""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.launch.errors import LaunchError

_HOST = re.compile(r"(?P<name>[\w.-]+|\[[0-9A-Fa-f:.]+\]):(?P<slots>[0-9]{1,9})$")
_LINE = re.compile(r"(?P<name>\S+)\s+slots\s*=\s*(?P<slots>[0-9]{1,9})$")
# Of DNS. Longer ones take the system minutes to refuse.
_LONGEST_NAME = 253


@dataclass(frozen=True)
class Host:
    """A host, and how many workers it takes."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


def parse_hosts(text: str) -> list[Host]:
    """Reads `host:slots,host:slots`.

    Raises:
      LaunchError: an entry is not of this form, or has no slots.
    """
    hosts = []
    for entry in text.split(","):
        found = _HOST.match(entry.strip())
        if not found:
            raise LaunchError(f"hosts {text!r}: got {entry.strip()!r}, wanted host:slots, as in localhost:2")
        hosts.append(_host(found, f"hosts {text!r}"))
    return hosts


def read_hostfile(path: str) -> list[Host]:
    """Reads lines `host slots=N`; empty lines, and what follows a #, are left out.

    Raises:
      LaunchError: the file cannot be read, names no host, or has a line that is not of this form.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"hostfile {path}: {getattr(error, 'strerror', None) or error}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        found = _LINE.match(line)
        if not found:
            raise LaunchError(f"hostfile {path}, line {number}: got {line!r}, wanted `host slots=N`")
        hosts.append(_host(found, f"hostfile {path}, line {number}"))
    if not hosts:
        raise LaunchError(f"hostfile {path}: it names no host; wanted lines `host slots=N`")
    return hosts


def _host(found: re.Match[str], where: str) -> Host:
    host = Host(found["name"].strip("[]"), int(found["slots"]))
    if not host.name:
        raise LaunchError(f"{where}: got a host without a name, wanted one")
    if host.slots < 1:
        raise LaunchError(f"{where}: {host.name} has no slots; wanted 1 or more")
    return host


def place(count: int, hosts: Sequence[Host]) -> list[Host]:
    """The hosts that `count` workers fill, in the order of the hosts, each with the number of its workers.

    Raises:
      LaunchError: there are fewer slots than workers, or one of these hosts is not this machine.
    """
    slots = sum(host.slots for host in hosts)
    if count > slots:
        raise LaunchError(f"-np {count}: there are {slots} slots ({','.join(map(str, hosts))})")
    filled = []
    for host in hosts:
        workers = min(host.slots, count)
        count -= workers
        if workers:
            filled.append(Host(host.name, workers))
    for host in filled:
        if not is_this_machine(host.name):
            raise LaunchError(
                f"host {host.name} is not this machine: this version starts the workers of a job on one machine, the "
                "one that it runs on"
            )
    return filled


def is_this_machine(name: str) -> bool:
    """True for a name or an address of this machine: one that a socket can be bound to here.

    Raises:
      LaunchError: the name cannot be resolved.
    """
    if name in ("localhost", socket.gethostname()):
        return True
    if len(name) > _LONGEST_NAME:
        raise LaunchError(f"host {name[:40]}... has a name of {len(name)} characters; wanted at most {_LONGEST_NAME}")
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except (OSError, ValueError) as error:
        raise LaunchError(f"host {name} cannot be resolved: {getattr(error, 'strerror', None) or error}") from None
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
