"""What each worker of a launcher is told in environment variables.

Ranks run over the tasks of TF_CONFIG (the chief first), and over the workers of a task: with L workers a task, worker
`i` of task `t` has rank `t * L + i`. Launchers of several tasks say the same without a word to each other: all of it
follows from TF_CONFIG and L, which is the same for all.
"""

import itertools
import json
import math
import os
import random
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.launch.errors import LaunchError
from lockstep.launch.secret import shared_secret
from lockstep.launch.tasks import LOOPBACK, Tasks

# Below the ports that systems give to outgoing connections (from 32768 on), which could take one meanwhile.
_PORTS = range(20001, 32768)
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


def worker_environments(
    base: Mapping[str, str], count: int, devices: Sequence[str] | None, tasks: Tasks | None = None
) -> list[dict[str, str]]:
    """The environments of this launcher's workers, in the order of their ranks.

    Args:
      base: What every worker inherits.
      count: Workers of this launcher (and of every other).
      devices: CUDA_VISIBLE_DEVICES of each worker; empty to keep GPUs from all; None to leave the variable alone.
      tasks: Where this launcher stands; the only one by default.

    Raises:
      LaunchError: there are no free ports, or several launchers have no secret in common.
    """
    tasks = tasks or Tasks()
    rendezvous, secret, addresses = _meeting(base, count, tasks)
    first = tasks.index * count
    # Ranks of the workers on this host, those of other launchers among them.
    local = [task * count + i for task in tasks.neighbours for i in range(count)]
    shared = dict(base)
    shared.update(
        LOCKSTEP_WORLD_SIZE=str(len(addresses)),
        LOCKSTEP_LOCAL_WORLD_SIZE=str(len(local)),
        LOCKSTEP_RENDEZVOUS=rendezvous,
        LOCKSTEP_SECRET=secret,
        LOCAL_WORLD_SIZE=str(len(local)),
    )
    # Without a terminal Python keeps output back until 8 KiB are together, and loses it when it is killed.
    shared.setdefault("PYTHONUNBUFFERED", "1")
    if not sets_malloc(base):
        shared.update(KEEP_MEMORY)
    if len(local) > 1:
        for name, value in threads_per_worker(available_cpus(), len(local)).items():
            shared.setdefault(name, value)
    environments = []
    for i, rank in enumerate(range(first, first + count)):
        environment = dict(shared, LOCKSTEP_RANK=str(rank), LOCKSTEP_LOCAL_RANK=str(local.index(rank)))
        if count > 1:  # A task's only worker is what its TF_CONFIG says.
            environment["TF_CONFIG"] = _tf_config(addresses, rank, tasks)
        if devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = devices[i] if devices else ""
        environments.append(environment)
    return environments


def sets_malloc(environment: Mapping[str, str]) -> bool:
    """Whether the user has settings of glibc's malloc."""
    named = any(name.startswith("MALLOC_") for name in environment)
    return named or "glibc.malloc" in environment.get("GLIBC_TUNABLES", "")


def _meeting(base: Mapping[str, str], count: int, tasks: Tasks) -> tuple[str, str, list[str]]:
    """Where rank 0 waits for the others, the secret, and an address for each rank, which stands for it in TF_CONFIG."""
    if len(tasks.addresses) == 1:
        rendezvous, *ports = free_ports(1 + count)
        (host,) = tasks.hosts
        return f"{host}:{rendezvous}", secrets.token_hex(32), [f"{host}:{port}" for port in ports]
    # The first worker of a task has its address. Nobody listens at those of the others.
    ports = (port for port in itertools.count(_PORTS.start) if port not in tasks.ports)
    addresses = [
        address if i == 0 else f"{host}:{next(ports)}"
        for address, host in zip(tasks.addresses, tasks.hosts, strict=True)
        for i in range(count)
    ]
    return addresses[0], shared_secret(base, addresses[0]), addresses


def _tf_config(addresses: Sequence[str], rank: int, tasks: Tasks) -> str:
    if tasks.has_chief:
        cluster = {"chief": addresses[:1], "worker": addresses[1:]}
        task = {"type": "worker", "index": rank - 1} if rank else {"type": "chief", "index": 0}
    else:
        cluster, task = {"worker": addresses}, {"type": "worker", "index": rank}
    return json.dumps({"cluster": {**cluster, **tasks.beside}, "task": task})


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


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports of loopback that nobody listens on now.

    Raises:
      LaunchError: there are not enough.
    """
    held: list[socket.socket] = []
    try:
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            if len(held) == count:
                break
            candidate = socket.socket()
            held.append(candidate)
            try:
                candidate.bind((LOOPBACK, port))
            except OSError:
                held.pop().close()
        if len(held) < count:
            raise LaunchError(f"only {len(held)} of {count} TCP ports are free in {_PORTS.start}-{_PORTS.stop - 1}")
        return [taken.getsockname()[1] for taken in held]
    finally:
        for taken in held:
            taken.close()
