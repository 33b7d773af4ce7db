"""TCP ports for the rendezvous of a job's workers."""

import contextlib
import os
import random
import socket
from pathlib import Path

from lockstep.launch.base.errors import LaunchError

# They lie below the ports that systems use for outgoing connections (from 32768 on), so no connection takes one
# meanwhile.
PORTS = range(20001, 32768)
_LISTEN = "0A"  # in /proc/net/tcp


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Returns distinct TCP ports of an address of this machine that are free now.

    Args:
      count: The number of ports.
      host: The address; empty: all addresses.

    Raises:
      LaunchError: there are not enough free ports.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held: list[socket.socket] = []
    try:
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            if len(held) == count:
                break
            candidate = socket.socket(family)
            held.append(candidate)
            try:
                candidate.bind((host, port))
            except OSError:
                held.pop().close()
        if len(held) < count:
            raise LaunchError(f"only {len(held)} of {count} TCP ports are free in {PORTS.start}-{PORTS.stop - 1}")
        return [taken.getsockname()[1] for taken in held]
    finally:
        for taken in held:
            taken.close()


def listener_at(number: int, proc: Path = Path("/proc")) -> str:
    """Returns the process that listens at a TCP port, such as "python3 (pid 7)"; empty if it cannot be seen."""
    sockets = set()
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for fields in map(str.split, (proc / table).read_text().splitlines()[1:]):
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == number:
                    sockets.add(f"socket:[{fields[9]}]")
    for folder in sorted(proc.glob("[0-9]*")):
        with contextlib.suppress(OSError):
            if any(os.readlink(link) in sockets for link in (folder / "fd").iterdir()):
                return f"{(folder / 'comm').read_text().strip()} (pid {folder.name})"
    return ""
