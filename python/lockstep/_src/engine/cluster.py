"""The place of this process in its job, read from the launcher's variables or TF_CONFIG."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Mapping

from lockstep.launch.base.places import MOST_WORKERS
from lockstep.launch.base.secret import PLACEHOLDER, PLACEHOLDER_HINT

# The launcher's variables, all strings.
RANK = "LOCKSTEP_RANK"
WORLD_SIZE = "LOCKSTEP_WORLD_SIZE"
LOCAL_RANK = "LOCKSTEP_LOCAL_RANK"
LOCAL_WORLD_SIZE = "LOCKSTEP_LOCAL_WORLD_SIZE"
RENDEZVOUS = "LOCKSTEP_RENDEZVOUS"
# The same address as workers on rank 0's machine use it; it is set if the machine's name resolves to loopback there.
RENDEZVOUS_HERE = "LOCKSTEP_RENDEZVOUS_HERE"
SECRET = "LOCKSTEP_SECRET"
INTERFACE = "LOCKSTEP_INTERFACE"

# Tasks of a TF_CONFIG that train together, in the order of their ranks.
_TRAINERS = ("chief", "worker")
# Tasks beside the job. Each is a job of its own: an evaluator evaluates checkpoints, a parameter server does nothing.
_SIDE_TASKS = ("evaluator", "ps")


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of a TF_CONFIG: `cluster` maps a task type to the host:port of its tasks."""

    task_type: str
    task_id: int
    cluster: dict[str, list[str]]

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Task | None:
        """Returns the TF_CONFIG of `environ`, None if it is missing or empty; raises ValueError if it is malformed."""
        text = environ.get("TF_CONFIG", "").strip()
        if not text:
            return None
        try:
            config = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"TF_CONFIG is not JSON ({error}): {text!r}; correct it or unset it") from None
        if not isinstance(config, dict):
            raise ValueError(f"TF_CONFIG: got {text!r}, wanted an object with 'cluster' and 'task'")
        cluster = config.get("cluster")
        if not cluster:  # such a TF_CONFIG describes a job of one process, as tf.estimator reads it
            return None
        try:
            cluster = {str(kind): _addresses(hosts) for kind, hosts in cluster.items()}
            task_type, task_id = str(config["task"]["type"]), int(config["task"]["index"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"TF_CONFIG: got {text!r}, wanted 'cluster' (lists of host:port) and 'task' with 'type' and 'index' "
                f"({type(error).__name__}: {error})"
            ) from None
        if not 0 <= task_id < len(cluster.get(task_type, ())):
            raise ValueError(f"TF_CONFIG: task {task_type}:{task_id} is not in the cluster {cluster}")
        return cls(task_type, task_id, cluster)

    @property
    def trainers(self) -> list[tuple[str, int]]:
        """(type, index) of the tasks that train together, in the order of their ranks."""
        return [(kind, index) for kind in _TRAINERS for index in range(len(self.cluster.get(kind, ())))]


def _addresses(hosts: list[str] | dict[str, str]) -> list[str]:
    if isinstance(hosts, dict):  # the sparse form: {"0": "host:port"}
        hosts = [hosts[key] for key in sorted(hosts, key=int)]
    if isinstance(hosts, str):
        raise TypeError(f"{hosts!r} is not a list of host:port")
    return [str(host) for host in hosts]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The job as this process sees it. `trainers[rank]` is the (task type, index) of this process."""

    task_type: str
    task_id: int
    spec: dict[str, list[str]] | None  # of TF_CONFIG
    rank: int
    local_rank: int
    local_world_size: int
    trainers: tuple[tuple[str, int], ...]
    rendezvous: str  # host:port of rank 0's rendezvous; empty if there is only one worker
    secret: str
    listen: str = ""  # host:port where rank 0 listens, if not at the rendezvous

    @property
    def world_size(self) -> int:
        """Number of workers in the job."""
        return len(self.trainers)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Cluster:
        """Reads the launcher's variables; without them TF_CONFIG; without it returns a job of one worker.

        Raises:
          ValueError: a variable is missing or has a wrong value; the message has its name, its value and a right value.
        """
        task = Task.from_environment(environ)
        if RANK in environ or WORLD_SIZE in environ:
            return cls._launched(environ, task)
        if task is None:
            return cls("localhost", 0, None, 0, 0, 1, (("localhost", 0),), "", "")
        here = (task.task_type, task.task_id)
        if here not in task.trainers:
            if task.task_type in _SIDE_TASKS:
                return cls(*here, task.cluster, 0, 0, 1, (here,), "", "")
            raise ValueError(
                f"TF_CONFIG: task type {task.task_type!r} does not train; "
                f"wanted one of {', '.join(map(repr, _TRAINERS + _SIDE_TASKS))}"
            )
        _check_size(len(task.trainers), "TF_CONFIG")
        hosts = [task.cluster[kind][index] for kind, index in task.trainers]
        rank = task.trainers.index(here)
        mine = hosts[rank].rpartition(":")[0]
        neighbours = [r for r, host in enumerate(hosts) if host.rpartition(":")[0] == mine]
        return cls(
            *here,
            spec=task.cluster,
            rank=rank,
            local_rank=_integer(environ, LOCAL_RANK, neighbours.index(rank), 0),
            local_world_size=_integer(environ, LOCAL_WORLD_SIZE, len(neighbours), 1),
            trainers=tuple(task.trainers),
            rendezvous=environ.get(RENDEZVOUS, hosts[0]),
            secret=environ.get(SECRET, ""),
        )

    @classmethod
    def _launched(cls, environ: Mapping[str, str], task: Task | None) -> Cluster:
        size = _integer(environ, WORLD_SIZE, None, 1)
        _check_size(size, WORLD_SIZE)
        rank = _integer(environ, RANK, None, 0)
        if rank >= size:
            raise ValueError(f"{RANK}: got {rank}, wanted less than {WORLD_SIZE}, which is {size}")
        trainers = task.trainers if task else [("worker", r) for r in range(size)] if size > 1 else [("localhost", 0)]
        if task is not None and len(trainers) != size:
            raise ValueError(f"{WORLD_SIZE} is {size}, but TF_CONFIG names {len(trainers)} workers: {task.cluster}")
        here = environ.get(RENDEZVOUS_HERE, "")
        return cls(
            *trainers[rank],
            spec=task.cluster if task else None,
            rank=rank,
            local_rank=_integer(environ, LOCAL_RANK, rank, 0),
            local_world_size=_integer(environ, LOCAL_WORLD_SIZE, size, 1),
            trainers=tuple(trainers),
            rendezvous=here or environ.get(RENDEZVOUS, ""),
            secret=environ.get(SECRET, ""),
            listen=_anywhere(here) if here and not environ.get(INTERFACE) else "",
        )

    def alone(self) -> Cluster:
        """Returns a job of only this process, with the task type, task index and secret that it has in this job."""
        return dataclasses.replace(
            self,
            rank=0,
            local_rank=0,
            local_world_size=1,
            trainers=(self.trainers[self.rank],),
            rendezvous="",
            listen="",
        )

    def check_can_connect(self) -> None:
        """Raises ValueError if a variable is missing that workers need to connect, or if this is a parameter server."""
        if self.task_type == "ps":
            raise ValueError(
                "TF_CONFIG: this process is a parameter server, but workers keep the parameters themselves; let it "
                "call hb.train.Server().join(), which returns at once, or leave 'ps' out of the cluster"
            )
        for variable, value in ((RENDEZVOUS, self.rendezvous), (SECRET, self.secret)):
            if self.world_size > 1 and not value:
                raise ValueError(
                    f"rank {self.rank} of {self.world_size}: {variable} is not set; start the workers with a launcher "
                    "(python -m hybridbackend.run), or set it to the same value on all of them"
                )
        if self.world_size > 1 and self.secret.strip() == PLACEHOLDER:
            raise ValueError(f"rank {self.rank} of {self.world_size}: {SECRET} is {PLACEHOLDER}, {PLACEHOLDER_HINT}")


def _check_size(workers: int, variable: str) -> None:
    if workers > MOST_WORKERS:
        raise ValueError(f"{variable}: got {workers} workers, wanted at most {MOST_WORKERS}")


def _anywhere(address: str) -> str:
    """Returns the address of all interfaces with the port of `address`; other machines may use any of them."""
    host = "[::]" if socket.has_dualstack_ipv6() else "0.0.0.0"
    return f"{host}:{address.rpartition(':')[2]}"


def _integer(environ: Mapping[str, str], variable: str, default: int | None, least: int) -> int:
    text = environ.get(variable)
    if text is None:
        if default is None:
            raise ValueError(f"{variable} is not set, though {RANK} or {WORLD_SIZE} is; a launcher sets both")
        return default
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{variable}: got {text!r}, wanted an integer") from None
    if number < least:
        raise ValueError(f"{variable}: got {number}, wanted at least {least}")
    return number
