"""What each worker is told in environment variables: by the job, and by the host that it is started on.

The launchers of several tasks (TF_CONFIG, Slurm) say the same without a word to each other: all of it follows from the
tasks and from L, the number of workers of each, which is the same for all. Worker `i` of task `t` has rank `t * L + i`.
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
# An iterator's get_next and a reader may each hold a thread between ops: with one, either would stop the other.
_MIN_INTEROP_THREADS = 2
# glibc's malloc gives large blocks back to the system when they are freed, so each step pays for the same pages anew:
# a tenth of the processors' time where activations are some MiB. 32 MiB is the most that all its versions take.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# Of a process's environment, with its name and the byte behind it: Linux starts none with a longer one.
_LONGEST_VARIABLE = 32 * 4096


@dataclass(frozen=True)
class Rendezvous:
    """How the workers of a job find and know each other.

    Attributes:
      address: host:port, where rank 0 waits for the others.
      secret: By which they know each other.
      local_address: The rendezvous as workers of rank 0's machine reach it, if that is otherwise: host:port.
      addresses: One for each rank, which stands for it in TF_CONFIG.
      has_chief: As of `Tasks`.
      auxiliary: As of `Tasks`.
    """

    address: str
    secret: str
    addresses: Sequence[str]
    has_chief: bool = True
    auxiliary: Mapping[str, Any] = field(default_factory=dict)
    local_address: str = ""

    def variables(self) -> dict[str, str]:
        """What every worker is told."""
        addresses = {"LOCKSTEP_RENDEZVOUS": self.address, "LOCKSTEP_RENDEZVOUS_HERE": self.local_address}
        return {**addresses, "LOCKSTEP_SECRET": self.secret}

    def tf_config(self, rank: int) -> str:
        """TF_CONFIG of a worker; LaunchError where all its addresses are more than a process can be told."""
        if self.has_chief:
            cluster = {"chief": self.addresses[:1], "worker": self.addresses[1:]}
            task = {"type": "worker", "index": rank - 1} if rank else {"type": "chief", "index": 0}
        else:
            cluster, task = {"worker": self.addresses}, {"type": "worker", "index": rank}
        text = json.dumps({"cluster": {**cluster, **self.auxiliary}, "task": task})
        if len(text) + len("TF_CONFIG=") >= _LONGEST_VARIABLE:
            raise LaunchError(
                f"TF_CONFIG: the addresses of {len(self.addresses)} workers are {len(text)} characters, and a process "
                f"is told of less than {_LONGEST_VARIABLE}; wanted fewer workers"
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
    """The environments of this launcher's workers, in the order of their ranks.

    Args:
      base: What every worker inherits.
      count: Workers of this launcher (and of every other).
      devices: CUDA_VISIBLE_DEVICES of each worker; empty to keep GPUs from all; None to leave the variable alone.
      tasks: Where this launcher stands; the only one by default.
      tf_config: Whether several workers get a TF_CONFIG.

    Raises:
      LaunchError: they are more than a job can have, there are no free ports, several launchers have no secret in
        common, or the interface that was chosen is not there.
    """
    tasks = tasks or Tasks()
    check_size(count * len(tasks.addresses), f"-n {count}")
    rendezvous = _rendezvous(base, count, tasks)
    mine = slice(tasks.index * count, (tasks.index + 1) * count)
    stand = places([(host, number * count) for host, number in tasks.by_host])[mine]
    told = [{**place.variables(), **rendezvous.variables()} for place in stand]
    if tf_config and count > 1:  # A task's only worker is what its TF_CONFIG says.
        for place, variables in zip(stand, told, strict=True):
            variables["TF_CONFIG"] = rendezvous.tf_config(place.rank)
    return on_this_host(base, told, devices)


def on_this_host(
    base: Mapping[str, str], told: Sequence[Mapping[str, str]], devices: Sequence[str] | None
) -> list[dict[str, str]]:
    """The environments of workers that are started here.

    Args:
      base: What they inherit.
      told: What the job tells each of them: its place at least.
      devices: CUDA_VISIBLE_DEVICES of each; empty to keep GPUs from all; None to leave the variable alone.
    """
    shared = with_defaults(base, int(told[0]["LOCKSTEP_LOCAL_WORLD_SIZE"]))
    environments = [{**shared, **variables} for variables in told]
    if devices is not None:
        for i, environment in enumerate(environments):
            environment["CUDA_VISIBLE_DEVICES"] = devices[i] if devices else ""
    return environments


def with_defaults(base: Mapping[str, str], here: int) -> dict[str, str]:
    """An environment, with what workers need of which the user has said nothing.

    Args:
      base: It.
      here: How many workers this machine has.
    """
    shared = dict(base)
    # Without a terminal Python keeps output back until 8 KiB are together, and loses it when it is killed.
    shared.setdefault("PYTHONUNBUFFERED", "1")
    if not _sets_malloc(base):
        shared.update(KEEP_MEMORY)
    if here > 1:
        for name, value in threads_per_worker(available_cpus(), here).items():
            shared.setdefault(name, value)
    return shared


def _sets_malloc(environment: Mapping[str, str]) -> bool:
    """Whether the user has settings of glibc's malloc."""
    named = any(name.startswith("MALLOC_") for name in environment)
    return named or "glibc.malloc" in environment.get("GLIBC_TUNABLES", "")


def _rendezvous(base: Mapping[str, str], count: int, tasks: Tasks) -> Rendezvous:
    """How the workers of these tasks meet; each address stands for a rank in TF_CONFIG."""
    choice = base.get(interfaces.VARIABLE)
    chosen = interfaces.address_of(choice) if choice else None
    if len(tasks.addresses) == 1:
        port, *ports = free_ports(1 + count, chosen or LOOPBACK)
        (host,) = tasks.hosts
        addresses = [f"{host}:{other}" for other in ports]
        at = interfaces.with_port(chosen or host, port)
        return Rendezvous(at, secrets.token_hex(32), addresses, tasks.has_chief, tasks.auxiliary)
    # The first worker of a task has its address. Nobody listens at those of the others.
    ports = (port for port in itertools.count(PORTS.start) if port not in tasks.ports)
    addresses = [
        address if i == 0 else f"{host}:{next(ports)}"
        for address, host in zip(tasks.addresses, tasks.hosts, strict=True)
        for i in range(count)
    ]
    secret = shared_secret(base, addresses[0], len(tasks.by_host), tasks.job)
    return Rendezvous(addresses[0], secret, addresses, tasks.has_chief, tasks.auxiliary, _local_address(choice, tasks))


def _local_address(choice: str | None, tasks: Tasks) -> str:
    """Of `Rendezvous`, for this launcher's workers.

    Tasks meet at the first one's address. Where that machine's own name leads it to loopback (Debian's /etc/hosts has
    it as 127.0.1.1), the others, who know it by another address, would call in vain.
    """
    first, *others = (host.strip("[]") for host, _ in tasks.by_host)
    is_first = tasks.hosts[tasks.index] == tasks.hosts[0]
    # A name that is not known yet will be waited for.
    if not others or not is_first or not interfaces.leads_to_loopback(first, if_unknown=False):
        return ""
    reached = interfaces.rendezvous_host(first, choice, others)
    if reached == first:  # The others are this machine as well.
        return ""
    return interfaces.with_port(reached, int(tasks.addresses[0].rpartition(":")[2]))


def threads_per_worker(cpus: int, count: int) -> dict[str, str]:
    """Thread pools that share `cpus` processors among `count` workers."""
    share = max(1, cpus // count)
    values = (share, max(share, _MIN_INTEROP_THREADS), share)
    return {name: str(value) for name, value in zip(_THREAD_VARIABLES, values, strict=True)}


def available_cpus(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Processors that this process may use: its affinity, and the quota of its control group where it has one."""
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
