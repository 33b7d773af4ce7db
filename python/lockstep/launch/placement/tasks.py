"""The tasks of a job, as TF_CONFIG or Slurm names them. Each task has a launcher, which starts the task's workers."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.places import check_size

LOOPBACK = "127.0.0.1"
# Tasks without a rank: one evaluates checkpoints. The other would hold parameters, but here the workers hold them.
_AUXILIARY = ("evaluator", "ps")
_PORT = re.compile(r"[0-9]{1,5}")
_V6 = re.compile(r"\[[0-9A-Fa-f:.%\w]+\]")


@dataclass(frozen=True)
class Tasks:
    """The tasks that train together, and this launcher's task among them.

    Attributes:
      addresses: The tasks' addresses, host:port, the chief's first. If the job has only one task, a host may be enough.
      index: The index of this launcher's task.
      has_chief: Whether rank 0 is a task of type chief. Without a chief, rank 0 is worker 0.
      is_auxiliary: Whether this launcher's task is an evaluator or a parameter server, which has no rank.
      auxiliary: The cluster's tasks without a rank, as in TF_CONFIG.
      job: Text that distinguishes this job from others with the same rendezvous address, or empty.
    """

    addresses: tuple[str, ...] = (LOOPBACK,)
    index: int = 0
    has_chief: bool = True
    is_auxiliary: bool = False
    auxiliary: Mapping[str, Any] = field(default_factory=dict)
    job: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the tasks."""
        return tuple(_host(address) for address in self.addresses)

    @property
    def by_host(self) -> list[tuple[str, int]]:
        """The hosts in their order, each with the number of its tasks, which have consecutive ranks."""
        return [(host, len(list(tasks))) for host, tasks in itertools.groupby(self.hosts)]

    @property
    def ports(self) -> set[int]:
        """The ports that the cluster gives to tasks, also to those without a rank."""
        given = [*self.addresses, *(address for tasks in self.auxiliary.values() for address in _addresses(tasks))]
        return {int(port) for port in (address.rpartition(":")[2] for address in given) if _PORT.fullmatch(port)}


def tasks_of(tf_config: str | None) -> Tasks:
    """Reads the TF_CONFIG of this launcher. Without one, the job consists of this launcher's workers.

    Raises:
      LaunchError: it is not a valid description of a cluster.
    """
    if tf_config is None or not tf_config.strip():
        return Tasks()
    try:
        config = json.loads(tf_config)
        cluster = config.get("cluster", {})
        if not cluster:
            return Tasks()
        role, index = config["task"]["type"], int(config["task"].get("index", 0))
        sizes = {kind: len(_addresses(tasks)) for kind, tasks in cluster.items()}
        chief, workers = (_addresses(cluster.get(kind, [])) for kind in ("chief", "worker"))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise LaunchError(
            f"TF_CONFIG is not a cluster description ({type(error).__name__}: {error}): {tf_config}"
        ) from None
    if role not in ("chief", "worker", *_AUXILIARY) or not 0 <= index < sizes.get(role, 0):
        raise LaunchError(f"TF_CONFIG: task {role!r} {index} is not in the cluster {json.dumps(cluster)}")
    auxiliary = {kind: cluster[kind] for kind in _AUXILIARY if sizes.get(kind)}
    if role in _AUXILIARY:
        return Tasks(is_auxiliary=True, auxiliary=auxiliary)
    check_size(len(chief) + len(workers), "TF_CONFIG")
    tasks = Tasks(tuple(chief + workers), index + len(chief) * (role == "worker"), bool(chief), auxiliary=auxiliary)
    _check_addresses(tasks.addresses)
    return tasks


def _addresses(tasks: Any) -> list[str]:
    """Returns the addresses of a cluster's tasks of one type: a list, or a mapping from indices (the sparse form)."""
    if isinstance(tasks, dict):
        return [str(tasks[index]) for index in sorted(tasks, key=int)]
    if not isinstance(tasks, list):
        raise TypeError(f"{tasks!r} is not a list of host:port")
    return [str(address) for address in tasks]


def _host(address: str) -> str:
    return address.rpartition(":")[0] or address


def _check_addresses(addresses: tuple[str, ...]) -> None:
    """Checks that several tasks have distinct addresses, and that the tasks of a host stand together."""
    if len(addresses) == 1:
        return
    for address, count in Counter(addresses).items():
        if count > 1:
            raise LaunchError(f"TF_CONFIG: {count} tasks have the address {address}; wanted a port for each")
        host, _, port = address.rpartition(":")
        if not host or not _PORT.fullmatch(port) or (":" in host) != bool(_V6.fullmatch(host)):
            raise LaunchError(f"TF_CONFIG: a task has the address {address!r}; wanted host:port, or [v6]:port")
    runs = Counter(host for host, _ in itertools.groupby(map(_host, addresses)))
    for host, count in runs.items():
        if count > 1:
            raise LaunchError(
                f"TF_CONFIG: tasks of host {host} are not consecutive ({', '.join(addresses)}); wanted them "
                "next to each other, because their workers have consecutive ranks"
            )
