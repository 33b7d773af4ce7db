"""The environment variables of each worker: the job's variables, and the variables of its host.

The launchers of several tasks (TF_CONFIG, Slurm) agree without communication: all values follow from the tasks and from
L, the number of workers of a task, which is the same for all tasks. Worker `i` of task `t` has rank `t * L + i`.
"""

import itertools
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.launch.base import interfaces
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.places import check_size, places
from lockstep.launch.base.ports import PORTS, free_ports
from lockstep.launch.base.secret import shared_secret
from lockstep.launch.placement.tasks import LOOPBACK, Tasks

_THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
# An iterator's get_next and a reader may each hold an inter-op thread. With only one thread, one would block the other.
_MIN_INTEROP_THREADS = 2
# glibc's malloc returns large blocks to the system when they are freed, so each step faults in the same pages again.
# With activations of some MiB, this takes a tenth of the CPU time. 32 MiB is the highest value that all its versions
# accept.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# The limit of Linux for one environment variable, with its name and the zero byte behind it.
_LONGEST_VARIABLE = 32 * 4096


@dataclass(frozen=True)
class Rendezvous:
    """The rendezvous of a job's workers: how they find and authenticate each other.

    Attributes:
      address: host:port, at which rank 0 waits for the others.
      secret: The job's secret, with which they authenticate each other.
      local_address: The host:port for workers on rank 0's machine, if they need another address; else empty.
      addresses: One for each rank, for TF_CONFIG.
      has_chief: As in `Tasks`.
      auxiliary: As in `Tasks`.
    """

    address: str
    secret: str
    addresses: Sequence[str]
    has_chief: bool = True
    auxiliary: Mapping[str, Any] = field(default_factory=dict)
    local_address: str = ""

    def variables(self) -> dict[str, str]:
        """Returns the variables that every worker gets."""
        addresses = {"LOCKSTEP_RENDEZVOUS": self.address, "LOCKSTEP_RENDEZVOUS_HERE": self.local_address}
        return {**addresses, "LOCKSTEP_SECRET": self.secret}

    def tf_config(self, rank: int) -> str:
        """Returns the TF_CONFIG of a worker.

        Raises:
          LaunchError: it has more addresses than fit into an environment variable.
        """
        if self.has_chief:
            cluster = {"chief": self.addresses[:1], "worker": self.addresses[1:]}
            task = {"type": "worker", "index": rank - 1} if rank else {"type": "chief", "index": 0}
        else:
            cluster, task = {"worker": self.addresses}, {"type": "worker", "index": rank}
        text = json.dumps({"cluster": {**cluster, **self.auxiliary}, "task": task})
        if len(text) + len("TF_CONFIG=") >= _LONGEST_VARIABLE:
            raise LaunchError(
                f"TF_CONFIG: the addresses of {len(self.addresses)} workers are {len(text)} characters, and Linux "
                f"takes variables of less than {_LONGEST_VARIABLE}; wanted fewer workers"
            )
        return text


def worker_environments(
    base: Mapping[str, str],
    count: int,
    devices: Sequence[str] | None,
    tasks: Tasks | None = None,
    *,
    tf_config: bool = True,
) -> list[dict[str, str]]:
    """Returns the environments of this launcher's workers, in the order of their ranks.

    Args:
      base: The variables that every worker inherits.
      count: The number of workers of this launcher, and of every other launcher of the job.
      devices: CUDA_VISIBLE_DEVICES of each worker; empty to hide all GPUs; None to leave the variable as it is.
      tasks: The tasks of the job; by default only this launcher's.
      tf_config: Whether several workers get a TF_CONFIG.

    Raises:
      LaunchError: a job cannot have so many workers, no ports are free, several launchers share no secret, or the
        chosen network interface does not exist.
    """
    tasks = tasks or Tasks()
    check_size(count * len(tasks.addresses), f"-n {count}")
    rendezvous = _rendezvous(base, count, tasks)
    mine = slice(tasks.index * count, (tasks.index + 1) * count)
    worker_places = places([(host, number * count) for host, number in tasks.by_host])[mine]
    worker_variables = [{**place.variables(), **rendezvous.variables()} for place in worker_places]
    if tf_config and count > 1:  # A task's only worker keeps the task's TF_CONFIG.
        for place, variables in zip(worker_places, worker_variables, strict=True):
            variables["TF_CONFIG"] = rendezvous.tf_config(place.rank)
    return on_this_host(base, worker_variables, devices)


def on_this_host(
    base: Mapping[str, str], worker_variables: Sequence[Mapping[str, str]], devices: Sequence[str] | None
) -> list[dict[str, str]]:
    """Returns the environments of workers that are started on this host.

    Args:
      base: The variables that they inherit.
      worker_variables: The variables that the job sets for each: at least its place.
      devices: CUDA_VISIBLE_DEVICES of each worker; empty to hide all GPUs; None to leave the variable as it is.
    """
    shared = with_defaults(base, int(worker_variables[0]["LOCKSTEP_LOCAL_WORLD_SIZE"]))
    environments = [{**shared, **variables} for variables in worker_variables]
    if devices is not None:
        for i, environment in enumerate(environments):
            environment["CUDA_VISIBLE_DEVICES"] = devices[i] if devices else ""
    return environments


def with_defaults(base: Mapping[str, str], here: int) -> dict[str, str]:
    """Returns an environment with defaults for variables that the user has not set.

    Args:
      base: The environment.
      here: The number of workers on this machine.
    """
    shared = dict(base)
    # Without a terminal, Python buffers 8 KiB of output, which are lost when it is killed.
    shared.setdefault("PYTHONUNBUFFERED", "1")
    if not _sets_malloc(base):
        shared.update(KEEP_MEMORY)
    if here > 1:
        for name, value in threads_per_worker(available_cpus(), here).items():
            shared.setdefault(name, value)
    return shared


def _sets_malloc(environment: Mapping[str, str]) -> bool:
    """Returns whether the user has set options of glibc's malloc."""
    named = any(name.startswith("MALLOC_") for name in environment)
    return named or "glibc.malloc" in environment.get("GLIBC_TUNABLES", "")


def _rendezvous(base: Mapping[str, str], count: int, tasks: Tasks) -> Rendezvous:
    """Returns the rendezvous of these tasks' workers, with an address for each rank."""
    choice = base.get(interfaces.VARIABLE)
    chosen = interfaces.address_of(choice) if choice else None
    if len(tasks.addresses) == 1:
        port, *ports = free_ports(1 + count, chosen or LOOPBACK)
        (host,) = tasks.hosts
        addresses = [f"{host}:{other}" for other in ports]
        at = interfaces.with_port(chosen or host, port)
        return Rendezvous(at, secrets.token_hex(32), addresses, tasks.has_chief, tasks.auxiliary)
    # The first worker of a task has the task's address. The addresses of the others only identify them.
    unused = (port for port in itertools.count(PORTS.start) if port not in tasks.ports)
    addresses = [
        address if i == 0 else f"{host}:{next(unused)}"
        for address, host in zip(tasks.addresses, tasks.hosts, strict=True)
        for i in range(count)
    ]
    secret = shared_secret(base, addresses[0], len(tasks.by_host), tasks.job)
    return Rendezvous(addresses[0], secret, addresses, tasks.has_chief, tasks.auxiliary, _local_address(choice, tasks))


def _local_address(choice: str | None, tasks: Tasks) -> str:
    """Returns `Rendezvous.local_address` for this launcher's workers.

    The rendezvous has the first task's address. On that machine its own name may mean loopback: Debian's /etc/hosts has
    it as 127.0.1.1. If rank 0 listened there, the other machines could not connect.
    """
    first, *others = (host.strip("[]") for host, _ in tasks.by_host)
    is_first = tasks.hosts[tasks.index] == tasks.hosts[0]
    # A name that cannot be resolved yet will be waited for.
    if not others or not is_first or not interfaces.leads_to_loopback(first, if_unknown=False):
        return ""
    reached = interfaces.rendezvous_host(first, choice, others)
    if reached == first:  # The other hosts are this machine as well.
        return ""
    return interfaces.with_port(reached, int(tasks.addresses[0].rpartition(":")[2]))


def threads_per_worker(cpus: int, count: int) -> dict[str, str]:
    """Returns the variables of thread pools that share `cpus` processors among `count` workers."""
    share = max(1, cpus // count)
    values = (share, max(share, _MIN_INTEROP_THREADS), share)
    return {name: str(value) for name, value in zip(_THREAD_VARIABLES, values, strict=True)}


def available_cpus(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the number of processors that this process may use, by its affinity and its control group's quota."""
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return cpus
    if quota in ("max", "-1"):
        return cpus
    return max(1, min(cpus, math.ceil(int(quota) / int(period))))
