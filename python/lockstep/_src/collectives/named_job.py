"""The job whose ranks communicate in named lanes, and its process sets: groups of its ranks with lanes of their own.

A process is in one job at a time; it may leave the job and join another. Process sets are numbered from 1; the number 0
stands for all ranks. To add or remove a process set, all ranks of the job make the same call, also those that are not
in the set.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

from lockstep._src.collectives import named
from lockstep._src.collectives.named_bytes import gather_bytes
from lockstep._src.engine import at_exit, devices, elastic, error_messages, file_errors, program_end
from lockstep._src.engine.cluster import Cluster
from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook_set import HookSet
from lockstep._src.hooks.interception import Interception


class NotStartedError(ValueError):
    """Raised in a process without a job: `start` was not called, or `stop` was."""


@dataclasses.dataclass
class _Job:
    cluster: Cluster
    ranks: list[int]  # the launcher's ranks, by rank in this job
    rank: int
    hosts: list[str]  # by rank; ranks of one host have the same text
    local_ranks: list[int]  # by rank; they give the order of the ranks of a host
    sets: dict[int, list[int]]  # process set's number -> its sorted ranks


_job: _Job | None = None
_was_started = False
_lock = threading.RLock()  # guards _job


def start(
    ranks: Sequence[int] | None = None,
    process_sets: Sequence[Sequence[int]] = (),
    *,
    stall_warning_s: float = 60,
    stall_timeout_s: float = 0,
    fusion_bytes: int = 64 << 20,
) -> None:
    """Joins the job of the launcher, or without a launcher a job of only this process.

    If this process has already joined a job, nothing happens.

    Args:
      ranks: the ranks of the launcher's job that take part, rank 0 first; all ranks by default. In the new job, ranks
        are numbered by their position in `ranks`.
      process_sets: the ranks of each process set, the same on all ranks. The sets get the numbers 1, 2, ...
      stall_warning_s: as in `open_lane`; also for the lanes of process sets that are added later.
      stall_timeout_s: likewise.
      fusion_bytes: likewise.

    Raises:
      ValueError: the environment is incomplete, or this process is not among `ranks`. All ranks raise this error if, on
        any of them, a set is empty, a duplicate, or contains a rank that does not exist, or if ranks pass different
        sets.
      tf.errors.OpError: the rendezvous failed; the message says which ranks are missing.
      SystemExit, RuntimeError: in an elastic job, as `elastic.join_round`.
    """
    settings: named.LaneSettings = {
        "stall_warning_s": stall_warning_s,
        "stall_timeout_s": stall_timeout_s,
        "fusion_bytes": fusion_bytes,
    }
    with _lock:
        if _job is None:
            program_end.watch()
            elastic.join_round(lambda: _connect(ranks, process_sets, settings))


def _connect(ranks: Sequence[int] | None, process_sets: Sequence[Sequence[int]], settings: named.LaneSettings) -> None:
    global _job, _settings, _was_started
    cluster = Cluster.from_environment(os.environ)
    ranks = _checked_ranks(ranks, cluster)
    sets: dict[int, list[int]] = {named.ALL: list(range(len(ranks)))}
    wrong = ""
    try:
        for wanted in process_sets:
            sets[len(sets)] = _checked_set(wanted, sets)
    except ValueError as error:  # sent to all ranks, because they would wait for this one
        wrong = str(error)
    rank = ranks.index(cluster.rank)
    named.open_lane(rank=rank, size=len(ranks), **settings)
    try:
        # If all ranks take part, the launcher's local rank is kept, because it may stand for a device.
        local = cluster.local_rank if len(ranks) == cluster.world_size else rank
        own = {"host": _host(cluster), "local": local, "sets": list(sets.values()), "wrong": wrong}
        all_ranks = gather_values(own, "start")
        _check_right([one["wrong"] for one in all_ranks])
        _check_alike([one["sets"] for one in all_ranks])
        hosts, local_ranks = ([one[what] for one in all_ranks] for what in ("host", "local"))
        _job = _Job(cluster, ranks, rank, hosts, local_ranks, {named.ALL: sets[named.ALL]})
        for number, members in list(sets.items())[1:]:
            _open_set(number, members, settings)
        error_messages.put_first("named_job")
        hooks.hold("named_job")
    except BaseException:
        stop()
        named.close_lane()
        raise
    _was_started = True
    if len(ranks) > 1:
        program_end.tell_joined()
    _settings = settings
    at_exit.register(_stop_at_exit)


def _intercept(interception: Interception) -> None:
    file_errors.intercept_savers(interception)
    devices.intercept_questions(interception)


# These symbols are replaced from `start` to `stop`. Other modules add the symbols that they replace in a job.
hooks = HookSet(symbols.NAMED_JOB, _intercept)
_settings: named.LaneSettings = {}  # for the lanes of sets that are added later


def stop() -> None:
    """Leaves the job and its process sets; does nothing without a job. The end of the process does the same.

    Waiting operations of this rank end with CancelledError; other ranks' operations end with an error that names this
    rank.
    """
    _leave("")


def _stop_at_exit() -> None:
    _leave(program_end.farewell())


def _leave(how: str) -> None:
    """Leaves the job and sends its reason to other ranks, which may wait for this one."""
    global _job
    with _lock:
        if _job is None:
            return
        at_exit.unregister(_stop_at_exit)
        error_messages.leave("named_job")
        hooks.release("named_job")
        job, _job = _job, None
        for number, members in reversed(job.sets.items()):
            if job.rank in members:
                named.close_lane(number, how)


def is_started() -> bool:
    """Returns whether this process has joined a job."""
    return _job is not None


def was_started() -> bool:
    """Returns whether this process has ever joined a job, also one that it has left."""
    return _was_started


def _current() -> _Job:
    job = _job
    if job is None:
        raise NotStartedError("this process is not in a job: it has not joined one, or has left it")
    return job


def rank() -> int:
    """Returns the rank of this process in its job. This and the functions below raise NotStartedError without a job."""
    return _current().rank


def size() -> int:
    """Returns the number of ranks of the job."""
    return len(_current().ranks)


def local_rank() -> int:
    """Returns the number of this process among the processes of its host."""
    job = _current()
    there = [local for host, local in zip(job.hosts, job.local_ranks, strict=True) if host == job.hosts[job.rank]]
    return sorted(there).index(job.local_ranks[job.rank])


def local_size() -> int:
    """Returns the number of processes on this host."""
    job = _current()
    return job.hosts.count(job.hosts[job.rank])


def cross_rank() -> int:
    """Returns the number of this host among the hosts that have a process with this local rank."""
    job = _current()
    return _hosts_across(job).index(job.hosts[job.rank])


def cross_size() -> int:
    """Returns the number of hosts that have a process with this local rank."""
    return len(_hosts_across(_current()))


def is_homogeneous() -> bool:
    """Returns whether all hosts have the same number of processes."""
    hosts = _current().hosts
    return len({hosts.count(host) for host in hosts}) == 1


def _hosts_across(job: _Job) -> list[str]:
    """Returns the hosts that have a process with this local rank, in the order of their first ranks."""
    index = local_rank()
    return [host for host in dict.fromkeys(job.hosts) if job.hosts.count(host) > index]


def _host(cluster: Cluster) -> str:
    """Returns a text that exactly the ranks of this host share.

    It is the host's name in the cluster, or the first of the launcher's ranks on the host.
    """
    if elastic.member() is not None:
        return ""  # All ranks are on one host, where the order of local ranks may differ from the order of ranks.
    if cluster.spec is None:
        return str(cluster.rank - cluster.local_rank)
    kind, index = cluster.trainers[cluster.rank]
    return cluster.spec[kind][index].rpartition(":")[0]


def process_sets() -> dict[int, list[int]]:
    """Returns the ranks of each process set, by its number; 0 stands for all ranks."""
    return {number: list(members) for number, members in _current().sets.items()}


def ranks_of(group: int) -> list[int]:
    """Returns the sorted ranks of a process set; raises ValueError if no set has this number."""
    sets = _current().sets
    if group not in sets:
        raise ValueError(f"process set {group} does not exist; there are {', '.join(map(str, sorted(sets)))}")
    return list(sets[group])


def add_process_set(ranks: Sequence[int]) -> int:
    """Creates a process set and returns its number, the smallest free one. All ranks of the job must call this.

    Raises:
      ValueError: there is already a set of these ranks, a rank does not exist, or ranks pass different sets. All ranks
        raise this error.
      tf.errors.OpError: the rendezvous of the set failed.
    """
    with _lock:
        job = _current()
        members, wrong = [], ""
        try:
            members = _checked_set(ranks, job.sets)
        except ValueError as error:
            wrong = str(error)
        of_ranks = gather_values([wrong, members], "add_process_set")
        _check_right([one for one, _ in of_ranks])
        _check_alike([one for _, one in of_ranks])
        number = next(n for n in range(1, len(job.sets) + 1) if n not in job.sets)
        _open_set(number, members, _settings)
        return number


def remove_process_set(group: int) -> bool:
    """Removes a process set and returns True; returns False for 0 and for a number without a set.

    All ranks of the job must call this.

    Raises:
      ValueError: the ranks pass different numbers.
    """
    with _lock:
        job = _current()
        if group == named.ALL or group not in job.sets:
            return False
        # No rank leaves the lane before all ranks have the results that they wait for.
        _check_alike(gather_values(group, "remove_process_set"))
        members = job.sets.pop(group)
        if job.rank in members:
            named.close_lane(group)
        return True


def _checked_ranks(ranks: Sequence[int] | None, cluster: Cluster) -> list[int]:
    ranks = list(range(cluster.world_size)) if ranks is None else [int(r) for r in ranks]
    if len(set(ranks)) < len(ranks) or not all(0 <= r < cluster.world_size for r in ranks):
        raise ValueError(f"got the ranks {ranks}, wanted each once, from 0 to {cluster.world_size - 1}")
    if cluster.rank not in ranks:
        raise ValueError(f"rank {cluster.rank} is not one of the ranks {ranks} that take part")
    if ranks[0] != 0:
        raise ValueError(f"got the ranks {ranks}, wanted rank 0 first: the others connect to its port")
    return ranks


def _checked_set(ranks: Sequence[int], sets: dict[int, list[int]]) -> list[int]:
    """Returns the sorted ranks; raises ValueError if a rank is not of the job, or if the set exists already."""
    members, world = sorted(int(r) for r in ranks), len(sets[named.ALL])
    if not members or len(set(members)) < len(members) or not 0 <= members[0] <= members[-1] < world:
        raise ValueError(f"process set of the ranks {members}: wanted one or more, each once, from 0 to {world - 1}")
    for number, others in sets.items():
        if members == others:
            raise ValueError(f"process set of the ranks {members}: a duplicate of process set {number}")
    return members


def gather_values(value: Any, name: str) -> list[Any]:
    """Returns the values of all ranks, which JSON can represent, by rank."""
    return [json.loads(data) for data in gather_bytes(json.dumps(value).encode(), name=name)]


def _check_right(complaints: list[str]) -> None:
    """Raises ValueError on all ranks with the complaint of the first rank that has one."""
    for rank, complaint in enumerate(complaints):
        if complaint:
            raise ValueError(complaint if len(set(complaints)) == 1 else f"rank {rank}: {complaint}")


def _check_alike(values: list) -> None:
    """Raises ValueError on all ranks with the values of the first two ranks that differ."""
    for other, value in enumerate(values):
        if value != values[0]:
            raise ValueError(f"the ranks want different process sets: rank 0 {values[0]}, rank {other} {value}")


def _open_set(number: int, members: list[int], settings: named.LaneSettings) -> None:
    """Opens the lane of a set if this rank is in it. All ranks of the job call this, and all get the same failure."""
    job = _current()
    is_first, failure = job.rank == members[0], ""
    with _listener(job) if is_first and len(members) > 1 else contextlib.nullcontext() as listener:
        address = "" if listener is None else f"{_address_host(job)}:{listener.getsockname()[1]}"
        address = gather_values(address, f"process_set.{number}.address")[members[0]]
        if job.rank in members:
            label = f"process set {number} of the ranks {members}"
            try:
                named.open_lane(
                    number,
                    rank=members.index(job.rank),
                    size=len(members),
                    rendezvous=address,
                    listener=listener,
                    label=label,
                    **settings,
                )
            except Exception as error:  # sent to all ranks, which raise it
                failure = str(error) or type(error).__name__
    outcomes = gather_values(failure, f"process_set.{number}.opened")
    failures = [f"rank {r}: {outcome}" for r, outcome in enumerate(outcomes) if outcome]
    if not failures:
        job.sets[number] = members
        return
    if job.rank in members and not failure:
        named.close_lane(number)
    raise RuntimeError(f"process set {number} of the ranks {members}: its ranks did not connect: {'; '.join(failures)}")


def _address_host(job: _Job) -> str:
    """Returns the address at which other ranks reach this one: the one from which it reaches the job's rank 0."""
    host, _, port = job.cluster.rendezvous.rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing: the kernel only finds the way
        own = probe.getsockname()[0]
    return f"[{own}]" if family == socket.AF_INET6 else own


def _listener(job: _Job) -> socket.socket:
    """Returns a listening socket for the rendezvous of a set; the kernel chooses the port."""
    host = _address_host(job).strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=128)
