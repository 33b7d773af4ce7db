"""The hosts of an elastic job: the output of the host discovery script, without hosts that are excluded for a while.

A host is identified by its ssh target: `name` or `user@name`. A host on which a worker failed gets no new workers, for
good or until its cooldown is over (`Cooldown`). Workers that still run there continue.
"""

import os
import random
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.local.guard import die_with
from lockstep.launch.placement.hosts import LONGEST_NAME, Host, parse_hosts

# A script that takes longer has failed.
SCRIPT_TIMEOUT_S = 60
# How much of a wrong line a message shows.
_MOST_SHOWN = 200


@dataclass(frozen=True)
class Cooldown:
    """The time for which a host is excluded after failures there: `least_s`, doubled each time, at most `most_s`.

    A random part of `least_s` is added, so that hosts that failed together do not come back together.
    """

    least_s: float
    most_s: float

    def seconds(self, failures: int, draw: Callable[[], float] = random.random) -> float:
        """Returns the time after so many failures (1 or more); `draw` gives numbers from 0 to 1."""
        return min(self.most_s, self.least_s * (2 ** min(failures - 1, 32) + draw()))


class HostPool:
    """The hosts with their slots, and which of them take new workers at a given time.

    Args:
      cooldown: For how long hosts are excluded after a failure; None: for good.
    """

    def __init__(self, cooldown: Cooldown | None = None):
        self._cooldown = cooldown
        self._slots: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._failed_at: dict[str, float] = {}
        self._until: dict[str, float] = {}
        self._machines: dict[str, str] = {}

    def found(self, slots: Mapping[str, int]) -> bool:
        """Takes the newest list; returns whether it differs from the last one. The oldest hosts come first."""
        kept = {host: slots[host] for host in self._slots if host in slots}
        new = {**kept, **{host: number for host, number in slots.items() if host not in kept}}
        changed, self._slots = new != self._slots, new
        return changed

    def failed(self, host: str, now: float) -> float | None:
        """Records that a worker failed there; returns for how many seconds the host is excluded, None: for good.

        Workers that fail at the same time, as they do when their host is lost, count as one failure.
        """
        if self._failed_at.get(host) == now:
            return None if self._cooldown is None else self._until[host] - now
        self._failed_at[host] = now
        self._failures[host] = self._failures.get(host, 0) + 1
        if self._cooldown is None:
            self._until[host] = float("inf")
            return None
        seconds = self._cooldown.seconds(self._failures[host])
        self._until[host] = max(self._until.get(host, 0.0), now + seconds)
        return seconds

    def takes_new(self, host: str, now: float) -> bool:
        """Returns whether workers may be started there."""
        return host in self._slots and now >= self._until.get(host, 0.0)

    def next_return(self, now: float) -> float | None:
        """Returns when the next excluded host takes workers again; None: no such host."""
        times = [until for host, until in self._until.items() if host in self._slots and now < until < float("inf")]
        return min(times, default=None)

    def machine(self, host: str) -> str:
        """Returns the machine's name, the same for all names of this machine: empty. A name is looked up once."""
        if host not in self._machines:
            self._machines[host] = "" if host_of(host).is_this_machine() else host
        return self._machines[host]

    def slots(self) -> Mapping[str, int]:
        """Returns host -> slots, in the order in which hosts were added."""
        return self._slots


def host_of(target: str) -> Host:
    """Returns the host of an ssh target, without slots."""
    user, _, name = target.rpartition("@")
    return Host(name, 0, user)


def parse_discovered(text: str, slots: int | None, script: str) -> dict[str, int]:
    """Reads what a host discovery script printed: lines `host:slots`, or `host` where `slots` is given.

    Raises:
      LaunchError: a line is not of this form.
    """
    found: dict[str, int] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        host = _host(line, slots, script)
        if len(host.name) > LONGEST_NAME:
            raise LaunchError(f"{script}: host {host.name[:40]}... has a name of more than {LONGEST_NAME} characters")
        found[host.target] = found.get(host.target, 0) + host.slots
    return found


def _host(line: str, slots: int | None, script: str) -> Host:
    try:
        (host,) = parse_hosts(line, slots)
    except (LaunchError, ValueError):
        wanted = "host:slots" + ("" if slots is not None else ", or only host with --slots-per-host")
        shown = line if len(line) <= _MOST_SHOWN else line[:_MOST_SHOWN] + "..."
        raise LaunchError(f"{script} printed {shown!r}, wanted {wanted}") from None
    return host


def script_command(script: str) -> Sequence[str]:
    """Returns the command of a host discovery script, which is a file or a command with arguments."""
    if os.path.isfile(script):
        return [os.path.abspath(script)]
    return shlex.split(script)


def start_script(script: str) -> subprocess.Popen:
    """Starts a host discovery script, whose stdout the caller reads.

    Raises:
      LaunchError: it cannot be executed.
    """
    launcher = os.getpid()
    try:
        return subprocess.Popen(
            script_command(script),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: die_with(launcher),
        )
    except (OSError, ValueError, IndexError) as error:
        said = getattr(error, "strerror", None) or error
        raise LaunchError(f"host discovery script {script!r} cannot be run: {said}") from None
