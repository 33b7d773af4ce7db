"""What becomes of a job when its launcher, or the launcher's agent on another host, is killed or stands still."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lockstep.testing.emulated_cluster import Cluster, Host, wait_until
from tests.hosts import fault_worker
from tests.hosts.launched import Launched, launched, ssh_on

ENDED_WITHIN_S = 10.0
_THERE_WITHIN_S = 120.0
_PATIENCE_S = 40.0  # then it hangs
_RANKS = range(4)  # two on each host
_LATE = 1


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that goes wrong with what started the workers.

    Attributes:
      name: what the table calls it.
      host: 0: it is the launcher, on the first host; 1: its agent on the second.
      number: the signal that it gets.
    """

    name: str
    host: int
    number: signal.Signals

    def find(self, job: Launched) -> int:
        """The process. The first one: its guard has the same name."""
        return job.hosts[self.host].pids(("hybridbackend.run", "lockstep.launch.agent")[self.host])[0]


FAULTS = [
    Fault("kill the launcher", 0, signal.SIGKILL),
    Fault("stop the launcher", 0, signal.SIGSTOP),
    Fault("kill the agent on host b", 1, signal.SIGKILL),
    Fault("stop the agent on host b", 1, signal.SIGSTOP),
]


def try_cell(fault: Fault, moment: str, folder: Path, draw: random.Random) -> tuple[float, list[str], str]:
    """Runs a job, has the fault strike in the moment, and looks at what is left.

    Returns:
      The seconds until everything had ended, what was not as promised, and what was written.
    """
    wrong: list[str] = []
    command = [sys.executable, fault_worker.__file__, folder, moment, _LATE]
    with Cluster(2) as hosts, ssh_on(hosts), launched(hosts, ["--hosts", "a:2,b:2"], command, folder) as job:
        for rank in _RANKS:
            there = folder / f"there.{rank}"
            wait_until(
                lambda there=there: there.exists() or job.process.poll() is not None, _THERE_WITHIN_S, there.name
            )
            if not there.exists():
                raise AssertionError(f"the job ended before {there.name}:\n{job.output()}")
        time.sleep(draw.random() * 0.1)
        victim = fault.find(job)
        begin = time.monotonic()
        os.kill(victim, fault.number)
        stands_still = fault.number == signal.SIGSTOP
        seconds = _time_to(lambda: all(pid == victim and stands_still for pid in _left(hosts)), begin)
        if fault.host == 1:
            _check_words(job, wrong)
        if stands_still and victim in _left(hosts):
            os.kill(victim, signal.SIGCONT)
            if _time_to(lambda: not _left(hosts), time.monotonic()) > ENDED_WITHIN_S:
                wrong.append(f"what stood still does not end when it goes on: {_left(hosts)}")
        if seconds > ENDED_WITHIN_S:
            wrong.append(f"the last process ended after {seconds:.1f} s")
        if job.process.poll() == 0:
            wrong.append("the launcher ended with exit code 0")
        for host in hosts:
            if left := host.shared_memory():
                wrong.append(f"shared memory is left on host {host.name}: {left}")
        return seconds, wrong, job.output()


def _check_words(job: Launched, wrong: list[str]) -> None:
    said = "\n".join(line for line in job.output().splitlines() if line.startswith("[lockstep]"))
    for what, pattern in {"a rank": r"rank [23]\b", "its host": r"\bhost b\b"}.items():
        if not re.search(pattern, said):
            wrong.append(f"the launcher does not name {what}")


def _left(hosts: list[Host]) -> list[int]:
    """Processes of the job."""
    return [pid for host in hosts for pid in set(host.pids()) - set(host.pids("emulated_ssh.py --serve"))]


def _time_to(condition: Callable[[], bool], begin: float) -> float:
    while not condition() and time.monotonic() - begin < _PATIENCE_S:
        time.sleep(0.05)
    return time.monotonic() - begin
