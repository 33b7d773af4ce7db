"""Faults of the launcher, of its host, and of its agent on another host: each of them dies or freezes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.testing.emulated_cluster import Cluster, Host, wait_until
from tests.hosts import fault_worker, leftovers
from tests.hosts.launched import Launched, launched, ssh_on

ENDED_WITHIN_S = 10.0
_THERE_WITHIN_S = 120.0
_PATIENCE_S = 40.0  # after that, the job counts as hanging
_RANKS = range(4)  # two on each host
_LATE = 1
_HOST_LOST = 255  # the launcher's exit code


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of a process that started workers.

    Attributes:
      name: its name in the table.
      strike: causes it.
      spares_launcher: whether the launcher survives; it must then name the lost host and ranks.
      still: processes that stand still from then on, and cannot end before they continue.
    """

    name: str
    strike: Callable[[Sequence[Host]], None]
    spares_launcher: bool = False
    still: Callable[[Sequence[Host]], Sequence[int]] = lambda hosts: ()


def _launcher(hosts: Sequence[Host]) -> list[int]:
    """Returns the launcher and its guard, which has the same name and ends with it."""
    return hosts[0].pids("hybridbackend.run")


def _agent(hosts: Sequence[Host]) -> list[int]:
    return hosts[1].pids("lockstep.launch.remote.agent")


FAULTS = [
    Fault("kill the launcher", lambda hosts: os.kill(_launcher(hosts)[0], signal.SIGKILL)),
    Fault("stop the launcher", lambda hosts: os.kill(_launcher(hosts)[0], signal.SIGSTOP), still=_launcher),
    Fault("kill the agent on host b", lambda hosts: os.kill(_agent(hosts)[0], signal.SIGKILL), spares_launcher=True),
    # Its guard kills it.
    Fault("stop the agent on host b", lambda hosts: os.kill(_agent(hosts)[0], signal.SIGSTOP), spares_launcher=True),
    Fault("kill the launcher's host", lambda hosts: hosts[0].kill()),
    Fault("the launcher's host loses its power", lambda hosts: hosts[0].lose_power()),
    Fault(
        "freeze the launcher's host", lambda hosts: hosts[0].freeze(), still=lambda hosts: leftovers.processes(hosts[0])
    ),
]


def try_cell(fault: Fault, moment: str, folder: Path, draw: random.Random) -> tuple[float, list[str], str]:
    """Runs a job, has the fault strike in the moment, and looks at what remains.

    Returns:
      The seconds until everything had ended, the broken promises, and the output.
    """
    wrong: list[str] = []
    command = fault_worker.command(folder, moment, _LATE)
    tmp = leftovers.own_tmp(folder)
    with (
        Cluster(2) as hosts,
        ssh_on(hosts, tmp),
        launched(hosts, ["--hosts", "a:2,b:2"], command, folder, tmp) as job,
    ):
        for rank in _RANKS:
            there = folder / f"there.{rank}"
            wait_until(
                lambda there=there: there.exists() or job.process.poll() is not None, _THERE_WITHIN_S, there.name
            )
            if not there.exists():
                raise AssertionError(f"the job ended before {there.name}:\n{job.output()}")
        time.sleep(draw.random() * 0.1)
        begin = time.monotonic()
        fault.strike(hosts)
        still = set(fault.still(hosts))
        seconds = _time_to(lambda: set(_left(hosts)) <= still, begin)
        if still & set(_left(hosts)):
            for pid in still:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            if _time_to(lambda: not _left(hosts), time.monotonic()) > ENDED_WITHIN_S:
                wrong.append(f"processes that were frozen do not end when they continue: {_left(hosts)}")
        if seconds > ENDED_WITHIN_S:
            wrong.append(f"the last process ended after {seconds:.1f} s")
        _check_launcher(job, fault, wrong)
        return seconds, wrong + leftovers.found(hosts, folder, moment), job.output()


def _check_launcher(job: Launched, fault: Fault, wrong: list[str]) -> None:
    """Checks the launcher's exit code and messages."""
    code = job.await_end(ENDED_WITHIN_S)
    if code == 0:
        wrong.append(f"the launcher ended with exit code {code}")
    if not fault.spares_launcher:
        return
    if code != _HOST_LOST:
        wrong.append(f"the launcher ended with exit code {code}, wanted {_HOST_LOST}")
    if not re.search(r"lost with host b \(ranks 2, 3\)", job.output()):
        wrong.append("the launcher does not name host and ranks that are lost")


def _left(hosts: Sequence[Host]) -> list[int]:
    """Returns the processes of the job."""
    return [pid for host in hosts for pid in leftovers.processes(host)]


def _time_to(condition: Callable[[], bool], begin: float) -> float:
    while not condition() and time.monotonic() - begin < _PATIENCE_S:
        time.sleep(0.05)
    return time.monotonic() - begin
