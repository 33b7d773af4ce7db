"""The driver of an elastic job: decides which workers start, their ranks, when a round begins, and when the job ends.

The driver only keeps books: its caller reports events to it, and carries out the actions that it returns
(`elastic_job`). A job runs in rounds, in which the ranks and their number are fixed. Each worker asks for its place
before a round (`ready`), and waits for it:

    started ──ready──► waiting ──round begins──► training ──ready: a peer died, or hosts changed──► waiting ...

A round begins when every worker that trains has come back or died, and enough workers are waiting. The workers of the
former round come first, in their order, so that rank 0 has the state that newcomers get. Newcomers are started while
the job trains, and join it once they wait for a place. So the job never waits for a worker's start.
"""

import itertools
import math
from dataclasses import dataclass, field

from lockstep.launch.base.places import MOST_WORKERS
from lockstep.launch.elastic.host_pool import HostPool, host_of

# How often workers are notified of a change again, until they come back for it.
_NOTIFY_EVERY_S = 1.0
# When a worker failed because of another: how long to wait for the other's failure, before the first one's counts.
_CAUSE_WITHIN_S = 3.0
_STATE_IS_LOST = "all workers that had the job's state have failed"


@dataclass(frozen=True)
class Limits:
    """The limits of an elastic job.

    Attributes:
      num_proc: The number of slots that must be available before the job starts.
      min_np: With fewer workers the job waits.
      max_np: The largest number of workers; None: one for each slot.
      timeout_s: For how many seconds the job waits.
      reset_limit: How often the job may be reset; None: without limit.
    """

    num_proc: int
    min_np: int
    max_np: int | None = None
    timeout_s: float = 600
    reset_limit: int | None = None


@dataclass
class WorkerState:
    """The driver's record of a worker.

    Attributes:
      number: Counts the workers that were started.
      host: Its host, as the list of hosts names it.
      slot: A slot that was free on its machine when it was started; becomes its local rank.
      batch: A number that workers share which were started at the same time.
      is_waiting: Whether it has asked for a place and waits.
      port: A free port on its machine, for the rendezvous if it becomes rank 0; None if it has reported none.
      has_state: Whether it has the job's state, which newcomers get from rank 0.
      keeps_state: Whether it has its peers' state already, and needs nothing from rank 0.
      rank: In the last round that it was part of; None if it was in no round yet.
      must_leave: Whether its slot is gone.
      is_given_up: Whether it did not come to a round in time, and is being killed.
    """

    number: int
    host: str
    slot: int
    batch: int
    is_waiting: bool = False
    port: int | None = None
    has_state: bool = False
    keeps_state: bool = False
    rank: int | None = None
    must_leave: bool = False
    is_given_up: bool = False

    @property
    def trains(self) -> bool:
        """Whether it is part of the current round."""
        return self.rank is not None and not self.is_waiting


@dataclass
class _SecondaryFailure:
    """The failure of a worker that failed because of another one's failure, at a time."""

    worker: WorkerState
    how: str
    at: float

    @property
    def line(self) -> str:
        """The message for the user, once the other worker has failed."""
        return f"{_name(self.worker)} {self.how} because another worker failed"


@dataclass
class Actions:
    """The actions to carry out now, in this order.

    Attributes:
      say: Lines for the user.
      start: Workers to start.
      places: The round that begins: worker number -> its message. Empty: no round begins.
      changed: The message for workers that train, if there is one.
      dismiss: Workers that wait for a place and are asked to end.
      kill: Workers to kill.
      over: The exit code of the job, which ends with all that runs; None: the job continues.
      why: The reason for the end, for waiting workers and the user.
    """

    say: list[str] = field(default_factory=list)
    start: list[WorkerState] = field(default_factory=list)
    places: dict[int, dict] = field(default_factory=dict)
    changed: dict | None = None
    dismiss: list[int] = field(default_factory=list)
    kill: list[int] = field(default_factory=list)
    over: int | None = None
    why: str = ""


class Driver:
    """The driver of one job. `now` is in seconds, by a clock that never goes back.

    Args:
      limits: The job's limits.
      hosts: The hosts on which workers may run.
    """

    def __init__(self, limits: Limits, hosts: HostPool):
        self.limits, self.hosts = limits, hosts
        # By number, without those that were asked to end.
        self.workers: dict[int, WorkerState] = {}
        self.round = 0
        self._resets = 0  # rounds after the first, except those that only complete a batch of newcomers
        self._batch = 0
        self._joined: set[int] = set()  # batches with a worker that has been in a round
        self._has_lost = False  # whether a worker of the last round has ended since it began
        self._numbers = itertools.count()
        self._returns_since: float | None = None  # since when the first worker waits for the others
        self._too_few_since: float | None = None  # since when there are too few workers
        self._told_at = -math.inf
        self._newcomers_since: float | None = None  # since when a newcomer waits that the others do not know of
        self._succeeded = False
        self._state_exists = False  # whether a worker has reported that it has the state; some programs have none
        self._failure = 0  # exit code of the last worker that failed
        self._exit_code = 0  # the job's exit code, if a worker has succeeded
        self._has_cause = False  # whether a worker of the last round has failed by itself since it began
        self._secondary_failures: list[_SecondaryFailure] = []  # failures whose cause has not ended yet

    # Events.

    def ready(self, number: int, has_state: bool, keeps_state: bool, port: int | None = None) -> None:
        """Records that a worker waits for a place."""
        worker = self.workers.get(number)
        if worker is not None:
            worker.is_waiting, worker.has_state, worker.keeps_state = True, has_state, keeps_state
            worker.port = port
            self._state_exists |= has_state

    def ended(self, number: int, code: int, how: str, now: float, is_secondary: bool = False) -> list[str]:
        """Records that a worker's process ended; returns lines for the user.

        Args:
          number: The worker's number.
          code: Its exit code.
          how: How it ended, in words: "was killed by SIGKILL".
          now: The time.
          is_secondary: Whether it failed because another one had failed. Then the other one's host counts as failed.
        """
        worker = self.workers.pop(number, None)
        if worker is None:
            return []
        self._has_lost |= worker.rank is not None
        if code == 0 and (worker.rank is not None or self.round == 0):
            self._succeeded = True
            return []
        failure = code if code > 0 else 128 - code if code < 0 else 1
        if is_secondary and not self._succeeded and worker.rank is not None:
            self._failure = self._failure or failure
            secondary = _SecondaryFailure(worker, how, now)
            if self._has_cause:
                return [secondary.line]
            self._secondary_failures.append(secondary)
            return []
        self._failure = failure
        if self._succeeded:
            self._exit_code = self._failure
            return [f"{_name(worker)} {how} after another worker succeeded"]
        lines = [self._exclude_host(worker, how if code else "exited before it joined the job", now)]
        if worker.rank is not None:
            self._has_cause = True
            lines += [secondary.line for secondary in self._secondary_failures]
            self._secondary_failures.clear()
        return lines

    def _exclude_host(self, worker: WorkerState, what: str, now: float) -> str:
        """Excludes the host of a worker that failed from new workers for a while; returns the line for the user."""
        seconds = self.hosts.failed(worker.host, now)
        until = "" if seconds is None else f" for {seconds:.1f} s"
        return f"{_name(worker)} {what}; no new workers on {worker.host}{until}"

    # Actions.

    def next(self, now: float) -> Actions:
        """Returns the actions that follow from the events so far."""
        actions = Actions()
        self._check_end(actions)
        self._judge_secondary_failures(actions, now)
        if actions.over is None and not self._succeeded:
            self._start_and_stop(actions, now)
        if actions.over is None:
            self._begin(actions, now)
        if actions.over is None and not actions.places and not self._succeeded:
            self._notify(actions, now)
        return actions

    def wake_at(self, now: float) -> float:
        """Returns when `next` has to be called if no event comes before."""
        times = [now + _NOTIFY_EVERY_S]
        times += [since + self.limits.timeout_s for since in (self._returns_since, self._too_few_since) if since]
        times += [secondary.at + _CAUSE_WITHIN_S for secondary in self._secondary_failures]
        if (back := self.hosts.next_return(now)) is not None:
            times.append(back)
        return max(now, min(times))

    # Parts of `next`.

    def _judge_secondary_failures(self, actions: Actions, now: float) -> None:
        """Counts secondary failures as failures of their own if no cause was seen in time, or can follow."""
        is_last = actions.over is not None or self._succeeded
        late = [secondary for secondary in self._secondary_failures if is_last or now >= secondary.at + _CAUSE_WITHIN_S]
        self._secondary_failures = [secondary for secondary in self._secondary_failures if secondary not in late]
        actions.say += [self._exclude_host(secondary.worker, secondary.how, now) for secondary in late]

    def _check_end(self, actions: Actions) -> None:
        """Checks whether the job is over."""
        if self._succeeded:
            # No worker may join any more. (Programs that ask for no place have no rounds, and end as they like.)
            newcomers = [worker for worker in self.workers.values() if worker.rank is None and self.round > 0]
            for worker in newcomers:
                actions.kill.append(self.workers.pop(worker.number).number)
            if not self.workers:
                actions.over = self._exit_code
        elif self._failure and self.round == 0 and not self.workers:
            actions.over, actions.why = self._failure, "all workers failed before the first round"
        elif self.round > 0 and all(worker.rank is None for worker in self.workers.values()):
            actions.over, actions.why = self._failure or 1, _STATE_IS_LOST

    def _start_and_stop(self, actions: Actions, now: float) -> None:
        """Chooses the workers that must leave and those to start."""
        self._choose_leaving(actions)
        unjudged = {secondary.worker.host for secondary in self._secondary_failures}
        slots = {
            host: number
            for host, number in self.hosts.slots().items()
            if host not in unjudged and self.hosts.takes_new(host, now)
        }
        there = sum(slots.values())
        if self.round == 0 and not self.workers:
            if there < self.limits.num_proc:
                self._wait_for_more(actions, now, f"{there} of {self.limits.num_proc} slots are available")
                return
            self._too_few_since = None
        most = MOST_WORKERS if self.limits.max_np is None else self.limits.max_np
        wanted = most - sum(not worker.must_leave for worker in self.workers.values())
        self._batch += 1
        for host, number in slots.items():
            free = number - sum(worker.host == host for worker in self.workers.values())
            for _ in range(min(free, wanted)):
                actions.start.append(self._new_worker(host))
                wanted -= 1

    def _choose_leaving(self, actions: Actions) -> None:
        leaving: set[int] = set()
        for host in {worker.host for worker in self.workers.values()}:
            there = sorted((w for w in self.workers.values() if w.host == host), key=lambda worker: worker.slot)
            leaving.update(worker.number for worker in there[self.hosts.slots().get(host, 0) :])
        have_state = {worker.number for worker in self.workers.values() if worker.rank is not None}
        if have_state <= leaving:
            # The state would be lost with them, so they stay until others have it.
            leaving -= have_state
        for worker in list(self.workers.values()):
            worker.must_leave = worker.number in leaving
            if worker.must_leave and worker.rank is None:
                actions.kill.append(self.workers.pop(worker.number).number)

    def _new_worker(self, host: str) -> WorkerState:
        machine = self.hosts.machine(host)
        taken = {worker.slot for worker in self.workers.values() if self.hosts.machine(worker.host) == machine}
        slot = next(slot for slot in itertools.count() if slot not in taken)
        worker = WorkerState(next(self._numbers), host, slot, self._batch)
        self.workers[worker.number] = worker
        return worker

    def _begin(self, actions: Actions, now: float) -> None:
        """Begins a round if it is time for one."""
        # Newcomers by themselves can begin only the first round.
        if not any(w.is_waiting and (w.rank is not None or self.round == 0) for w in self.workers.values()):
            self._returns_since = None
            return
        # Before the first round, all workers are awaited; later, those that train.
        awaited = [w for w in self.workers.values() if not w.is_waiting and (w.trains or self.round == 0)]
        self._returns_since = now if self._returns_since is None else self._returns_since
        if awaited and now < self._returns_since + self.limits.timeout_s:
            return
        for worker in [worker for worker in awaited if not worker.is_given_up]:
            worker.is_given_up = True
            actions.say.append(f"{_name(worker)} did not return within {self.limits.timeout_s:g} s: killing it")
            actions.kill.append(worker.number)
        if awaited:
            self._returns_since = now  # Their replacements have as long.
            return
        for worker in [w for w in self.workers.values() if w.is_waiting and w.must_leave]:
            actions.dismiss.append(self.workers.pop(worker.number).number)
            self._has_lost |= worker.rank is not None
        waiting = [worker for worker in self.workers.values() if worker.is_waiting]
        if self._state_exists and waiting and not any(worker.has_state for worker in waiting):
            # If a worker has succeeded, the workers that had not begun have nothing to do.
            actions.over = self._exit_code if self._succeeded else self._failure or 1
            actions.why = "" if self._succeeded else _STATE_IS_LOST
        elif len(waiting) < self.limits.min_np and not self._succeeded:
            self._wait_for_more(actions, now, f"{len(waiting)} of at least {self.limits.min_np} workers are ready")
        elif waiting and self._exceeds_limit(waiting) and not self._succeeded:
            actions.over = self._failure or 1
            actions.why = f"reset {self._resets + 1} exceeds the reset limit of "
            actions.why += str(self.limits.reset_limit)
        elif waiting:
            self._place(actions, waiting)

    def _exceeds_limit(self, waiting: list[WorkerState]) -> bool:
        limit = self.limits.reset_limit
        return limit is not None and self._resets >= limit and self._is_reset(waiting)

    def _is_reset(self, waiting: list[WorkerState]) -> bool:
        """Returns whether a round with these workers counts as a reset.

        A round that only completes a batch of newcomers was counted with the batch's first round.
        """
        if self.round == 0:
            return False
        newcomers = {worker.batch for worker in waiting if worker.rank is None}
        return self._has_lost or not newcomers or not newcomers <= self._joined

    def _place(self, actions: Actions, waiting: list[WorkerState]) -> None:
        self._resets += self._is_reset(waiting)
        self._joined |= {worker.batch for worker in waiting}
        self._has_lost = self._has_cause = False
        self.round += 1
        self._returns_since = self._too_few_since = self._newcomers_since = None
        self._told_at = -math.inf
        # Workers with the state come first, in the order of their ranks; newcomers follow as they were started. The
        # workers of a machine stand together, behind its first one.
        machines: dict[str, list[WorkerState]] = {}
        for worker in sorted(waiting, key=lambda w: (not w.has_state, w.rank is None, w.rank or 0, w.number)):
            machines.setdefault(self.hosts.machine(worker.host), []).append(worker)
        order = [worker for there in machines.values() for worker in there]
        all_keep_state = all(worker.keeps_state and worker.rank is not None for worker in order)
        for rank, worker in enumerate(order):
            worker.rank, worker.is_waiting = rank, False
            machine = self.hosts.machine(worker.host)
            # A newcomer's local rank is its slot, whose GPU is free: the slots before it are taken.
            local = sorted(other.slot for other in machines[machine]).index(worker.slot)
            having = [other for other, there in machines.items() if len(there) > local]
            actions.places[worker.number] = {
                "round": self.round,
                "rank": rank,
                "size": len(order),
                "local_rank": local,
                "local_size": len(machines[machine]),
                "cross_rank": having.index(machine),
                "cross_size": len(having),
                "host": host_of(worker.host).name,
                "all_keep_state": all_keep_state,
            }

    def _wait_for_more(self, actions: Actions, now: float, what: str) -> None:
        """Waits for more workers: shows this once, and ends the job when it has waited long enough."""
        if self._too_few_since is None:
            self._too_few_since = now
            actions.say.append(f"{what}; waiting for up to {self.limits.timeout_s:g} s")
        elif now >= self._too_few_since + self.limits.timeout_s:
            listed = ", ".join(f"{host}:{number}" for host, number in self.hosts.slots().items()) or "none"
            actions.over = self._failure or 1
            actions.why = f"{what}, after {self.limits.timeout_s:g} s of waiting; hosts: {listed}"

    def _notify(self, actions: Actions, now: float) -> None:
        """Notifies workers that train of a change of hosts, again and again until they come back."""
        if not any(worker.trains for worker in self.workers.values()) or now < self._told_at + _NOTIFY_EVERY_S:
            return
        removed = any(worker.must_leave for worker in self.workers.values())
        added = self._are_complete(now)
        if removed or added:
            self._told_at = now
            actions.changed = {"at": now, "added": added, "removed": removed}

    def _are_complete(self, now: float) -> bool:
        """Returns whether a batch of newcomers waits that is complete.

        So workers interrupt their training only once for a batch. After the timeout an incomplete batch counts as well.
        """
        waiting = {worker.batch for worker in self.workers.values() if worker.is_waiting and worker.rank is None}
        starting = {w.batch for w in self.workers.values() if not w.is_waiting and w.rank is None}
        if not waiting:
            self._newcomers_since = None
            return False
        if self._newcomers_since is None:
            self._newcomers_since = now
        return bool(waiting - starting) or now >= self._newcomers_since + self.limits.timeout_s


def _name(worker: WorkerState) -> str:
    return f"worker {worker.number} on {worker.host}" if worker.rank is None else f"rank {worker.rank}"
