"""Where this machine stands in its job, and what each of its workers is told in environment variables.

Ranks run over machines in the order of TF_CONFIG (the chief's first), and over the workers of a machine: with L
workers a machine, worker `i` of machine `m` has rank `m * L + i`.
"""

import json
import math
import os
import random
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.launch.errors import LaunchError

LOOPBACK = "127.0.0.1"
# Below the ports that systems give to outgoing connections (from 32768 on), which could take one meanwhile.
_PORTS = range(20001, 32768)
_THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
# An iterator's get_next and a reader may each hold a thread between ops: with one, either would stop the other.
_MIN_INTEROP_THREADS = 2


@dataclass(frozen=True)
class Machines:
    """The machines of a job.

    Attributes:
      hosts: Their addresses without ports, the chief's first.
      index: Which of them this one is.
      has_chief: True if rank 0 is a task of type chief; in a cluster of workers alone it is worker 0.
      evaluator: True if this machine evaluates beside the job and has no rank in it.
    """

    hosts: tuple[str, ...] = (LOOPBACK,)
    index: int = 0
    has_chief: bool = True
    evaluator: bool = False


def machines_of(tf_config: str | None) -> Machines:
    """Reads TF_CONFIG as it was set for this machine; without one, the job is this machine.

    Raises:
      LaunchError: it is no cluster description, or has parameter servers, which synchronous training knows none of.
    """
    if not (tf_config or "").strip():
        return Machines()
    try:
        config = json.loads(tf_config)
        cluster = config.get("cluster", {})
        if not cluster:
            return Machines()
        role, index = config["task"]["type"], int(config["task"].get("index", 0))
        chief, workers = list(cluster.get("chief", [])), list(cluster.get("worker", []))
        addresses = chief + workers
        hosts = tuple(address.rpartition(":")[0] or address for address in addresses)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LaunchError(
            f"TF_CONFIG is no cluster description ({type(error).__name__}: {error}): {tf_config}"
        ) from None
    if "ps" in cluster or role == "ps":
        raise LaunchError("TF_CONFIG has parameter servers: training is synchronous among chief and workers alone")
    if role == "evaluator":
        return Machines(hosts, 0, bool(chief), evaluator=True)
    position = index if role == "chief" else index + len(chief)
    if role not in ("chief", "worker") or not 0 <= index < len(cluster.get(role, [])):
        raise LaunchError(f"TF_CONFIG: task {role!r} {index} is not in the cluster {json.dumps(cluster)}")
    return Machines(hosts, position, bool(chief))


def check_reachable(machines: Machines) -> None:
    """Refuses what the communication engine cannot do yet.

    Raises:
      LaunchError: the job has more machines than this one.
    """
    if len(machines.hosts) > 1:
        raise LaunchError(
            f"TF_CONFIG names {len(machines.hosts)} machines ({', '.join(machines.hosts)}): workers of this version "
            "exchange through shared memory, inside of one machine. Run the job on one, with -n or several GPUs and "
            "a TF_CONFIG of this machine alone or none"
        )


def worker_environments(
    base: Mapping[str, str], count: int, devices: Sequence[str] | None, machines: Machines | None = None
) -> list[dict[str, str]]:
    """The environments of this machine's workers, by local rank.

    Args:
      base: What every worker inherits.
      count: Workers on this machine (and on every other).
      devices: CUDA_VISIBLE_DEVICES of each worker; empty to keep GPUs from all; None to leave the variable alone.
      machines: Where this machine stands; the only one by default.
    """
    machines = machines or Machines()
    world_size = count * len(machines.hosts)
    rendezvous, *ports = free_ports(1 + world_size)
    addresses = [f"{host}:{ports[m * count + i]}" for m, host in enumerate(machines.hosts) for i in range(count)]
    cluster = {"chief": addresses[:1], "worker": addresses[1:]} if machines.has_chief else {"worker": addresses}
    shared = dict(base)
    shared.update(
        LOCKSTEP_WORLD_SIZE=str(world_size),
        LOCKSTEP_LOCAL_WORLD_SIZE=str(count),
        LOCKSTEP_RENDEZVOUS=f"{machines.hosts[0]}:{rendezvous}",
        LOCKSTEP_SECRET=secrets.token_hex(32),
        LOCAL_WORLD_SIZE=str(count),
    )
    # Without a terminal Python keeps output back until 8 KiB are together, and loses it when it is killed.
    shared.setdefault("PYTHONUNBUFFERED", "1")
    if count > 1:
        for name, value in threads_per_worker(available_cpus(), count).items():
            shared.setdefault(name, value)
    environments = []
    for local_rank in range(count):
        rank = machines.index * count + local_rank
        environment = dict(shared, LOCKSTEP_RANK=str(rank), LOCKSTEP_LOCAL_RANK=str(local_rank))
        if world_size > 1:
            environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": _task(machines, rank)})
        if devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = devices[local_rank] if devices else ""
        environments.append(environment)
    return environments


def _task(machines: Machines, rank: int) -> dict[str, str | int]:
    if not machines.has_chief:
        return {"type": "worker", "index": rank}
    return {"type": "worker", "index": rank - 1} if rank else {"type": "chief", "index": 0}


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
