"""The hosts that a job may use, each with its slots: the number of workers that it takes."""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.places import check_size
from lockstep.launch.base.small_files import read_small

_USER = r"(?:(?P<user>[\w.][\w.-]*)@)?"
_NAME = r"(?P<name>[\w.][\w.-]*|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\])"
_HOST = re.compile(rf"{_USER}{_NAME}(?::(?P<slots>[0-9]{{1,9}}))?$")
_LINE = re.compile(rf"{_USER}(?P<name>[^\s@-]\S*)(?:\s+slots\s*=\s*(?P<slots>[0-9]{{1,9}}))?$")
# The limit of DNS. The system takes minutes to refuse longer names.
LONGEST_NAME = 253


@dataclass(frozen=True)
class Host:
    """A host, and the number of workers that it takes.

    Attributes:
      name: The host's name or address; IPv6 without brackets.
      slots: The number of workers.
      user: The account for ssh; empty: the account that starts the job.
    """

    name: str
    slots: int
    user: str = ""

    def __str__(self) -> str:
        return f"{self.target if ':' not in self.name else f'[{self.name}]'}:{self.slots}"

    @property
    def target(self) -> str:
        """The host's ssh target."""
        return f"{self.user}@{self.name}" if self.user else self.name

    def is_this_machine(self) -> bool:
        """Returns whether its workers are started directly. With a user's name they need another account, over ssh."""
        return not self.user and is_this_machine(self.name)


def parse_hosts(text: str, slots: int | None = None) -> list[Host]:
    """Reads `host:slots,host:slots`; `user@host:slots`, `[v6]:slots` and `[v6%scope]:slots` as well.

    Args:
      text: The list.
      slots: The slots of hosts without a number; None: each host needs a number.

    Raises:
      LaunchError: an entry is not of this form, or has no slots.
    """
    hosts = []
    for entry in text.split(","):
        found = _HOST.match(entry.strip())
        if not found or (slots is None and found["slots"] is None):
            raise LaunchError(f"hosts {text!r}: got {entry.strip()!r}, wanted host:slots, as in localhost:2")
        hosts.append(_host(found, slots, f"hosts {text!r}"))
    return hosts


def read_hostfile(path: str, slots: int | None = None) -> list[Host]:
    """Reads lines `host slots=N`; empty lines, and text behind a #, are skipped.

    Args:
      path: The file's path.
      slots: The slots of hosts without a number; None: each host needs a number.

    Raises:
      LaunchError: the file cannot be read, names no host, or has a line that is not of this form.
    """
    try:
        lines = read_small(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"hostfile {path}: {getattr(error, 'strerror', None) or error}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        found = _LINE.match(line)
        if not found or (slots is None and found["slots"] is None):
            raise LaunchError(f"hostfile {path}, line {number}: got {line!r}, wanted `host slots=N`")
        hosts.append(_host(found, slots, f"hostfile {path}, line {number}"))
    if not hosts:
        raise LaunchError(f"hostfile {path}: it names no host; wanted lines `host slots=N`")
    return hosts


def _host(found: re.Match[str], slots: int | None, where: str) -> Host:
    host = Host(found["name"].strip("[]"), int(found["slots"] or slots or 0), found["user"] or "")
    if not host.name:
        raise LaunchError(f"{where}: got a host without a name, wanted one")
    if host.slots < 1:
        raise LaunchError(f"{where}: {host.name} has no slots; wanted 1 or more")
    return host


def assign_slots(count: int, hosts: Sequence[Host]) -> list[Host]:
    """Fills the hosts with `count` workers, in the order of the hosts; returns each with the number of its workers.

    A host that is named several times counts as one host, with the sum of the slots. This machine may have several
    names.

    Raises:
      LaunchError: there are fewer slots than workers, or more workers than a job can have.
    """
    slots = sum(host.slots for host in hosts)
    if count > slots:
        raise LaunchError(f"-np {count}: there are {slots} slots ({','.join(map(str, hosts))})")
    check_size(count, f"hosts {','.join(map(str, hosts[:8]))}")
    filled: dict[str, Host] = {}
    here = ""
    for host in hosts:
        workers = min(host.slots, count)
        count -= workers
        if not workers:
            continue
        key = host.target
        if key not in filled and host.is_this_machine():
            key = here = here or key
        before = filled[key].slots if key in filled else 0
        filled[key] = replace(filled.get(key, host), slots=before + workers)
    return list(filled.values())


def is_this_machine(name: str) -> bool:
    """Returns whether this is a name or an address of this machine: one that a socket can be bound to here.

    A name that cannot be resolved belongs to another machine: ssh may know it.

    Raises:
      LaunchError: the name is longer than a name can be.
    """
    if name in ("localhost", socket.gethostname()):
        return True
    if len(name) > LONGEST_NAME:
        raise LaunchError(f"host {name[:40]}... has a name of {len(name)} characters; wanted at most {LONGEST_NAME}")
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except (OSError, ValueError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
