"""TCP ports for the rendezvous of a job's workers."""

import random
import socket

from lockstep.launch.base.errors import LaunchError

# They lie below the ports that systems use for outgoing connections (from 32768 on), so no connection takes one
# meanwhile.
PORTS = range(20001, 32768)


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
