"""Runs an elastic job: carries out the actions of its driver, and reports events to it."""

import contextlib
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.launch.base import elastic_wire, interfaces
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console, Stream
from lockstep.launch.base.ports import free_ports
from lockstep.launch.elastic.discovery import Discovery
from lockstep.launch.elastic.driver import Actions, Driver, Limits
from lockstep.launch.elastic.host_pool import Cooldown, HostPool, host_of
from lockstep.launch.elastic.other_hosts import OtherHosts, RemoteAccess
from lockstep.launch.elastic.worker_service import WorkerService
from lockstep.launch.local.guard import Guard
from lockstep.launch.local.output_folder import OutputCopy, open_copy
from lockstep.launch.local.process import Start
from lockstep.launch.local.supervised_job import SupervisedJob
from lockstep.launch.local.worker import LocalWorker, Worker
from lockstep.launch.placement.tasks import LOOPBACK
from lockstep.launch.placement.worker_environment import with_defaults
from lockstep.launch.remote.multi_host_job import KILL_TIMEOUT_S

# How long workers have to end by themselves before they are killed.
_GRACE_S = 10.0
_MOST_PORT = 65535
_ROUND_VARIABLES = ("TF_CONFIG", "LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE")


@dataclass(frozen=True)
class ElasticPlan:
    """The description of an elastic job.

    Attributes:
      limits: The numbers of workers.
      hosts: host -> slots, without a script.
      script: The host discovery script.
      slots: The slots of hosts for which the script prints no number.
      cooldown: For how long hosts are excluded after a failure.
      folder: A folder that also gets the output: worker.<number>/stdout and stderr.
      verbose: Whether to show which workers are started, and with which ranks.
    """

    limits: Limits
    hosts: Mapping[str, int] = field(default_factory=dict)
    script: str | None = None
    slots: int | None = None
    cooldown: Cooldown | None = None
    folder: str | None = None
    verbose: bool = False


class ElasticJob(SupervisedJob):
    """The workers of a job whose number changes.

    Args:
      start: Starts a worker on this machine.
      plan: The job.
      environment: The variables that every worker inherits.
      console: Shows the output.
      files: As in `SupervisedJob`.
      access: How workers are started on other hosts; None: all workers run on this machine.
    """

    def __init__(
        self,
        start: Start,
        plan: ElasticPlan,
        environment: Mapping[str, str],
        console: Console,
        files: str | None = None,
        access: RemoteAccess | None = None,
    ):
        super().__init__(start, [], console, files=files)
        self._plan = plan
        self._hosts = HostPool(plan.cooldown)
        base = {name: value for name, value in environment.items() if name not in _ROUND_VARIABLES}
        self._other_hosts: OtherHosts | None = None
        if access is not None:
            self._other_hosts = OtherHosts(access, base, console, files, lambda: list(self._hosts.slots()))
            self._kill_timeout_s = KILL_TIMEOUT_S
        self._driver = Driver(plan.limits, self._hosts)
        self._secret = secrets.token_hex(32)
        self._environment = base
        # The environment of all workers here, once there is a list of hosts.
        self._local_environment: dict[str, str] | None = None
        # By number, the workers that run.
        self._numbered: dict[int, Worker] = {}
        self._exit_code: int | None = None
        self._size = 0
        self._ended_well: list[int] = []
        self._dismissed: dict[int, float] = {}  # number -> when it is killed
        self._closing = contextlib.ExitStack()
        self._discovery: Discovery | None = None
        self._why = ""

    def _start(self, guard: Guard, selector: selectors.BaseSelector) -> None:
        self._guard, self._selector = guard, selector
        if self._other_hosts is not None:
            self._other_hosts.attach(guard, selector)
        self._service = self._closing.enter_context(WorkerService(self._secret, selector, self._heard))
        if self._plan.script is None:
            self._hosts.found(self._plan.hosts)
        else:
            self._discovery = self._closing.enter_context(
                Discovery(self._plan.script, self._plan.slots, self._hosts, selector, self._console)
            )
            self._discovery.tick()
        self._run_driver()

    @property
    def why(self) -> str:
        """The reason why the driver ended the job; empty if there is none."""
        return self._why

    def ranks(self) -> Sequence[int]:
        """Returns the ranks of the last round; without a round, the numbers of the workers that ended with 0."""
        return range(self._size) if self._size else sorted(self._ended_well)

    def _make_local_environment(self) -> dict[str, str]:
        """Returns the environment of all workers on this machine. They get their ranks before each round."""
        here = sum(slots for host, slots in self._hosts.slots().items() if not self._hosts.machine(host))
        most = self._plan.limits.max_np
        return with_defaults(self._environment, max(1, here if most is None else min(most, here)))

    @property
    def _ends(self) -> bool:
        """Whether no more workers are started."""
        return self._exit_code is not None or self._end_requests > 0 or self._kill_at is not None

    def _running(self) -> bool:
        return super()._running() if self._ends else True

    def _select_timeout(self) -> float | None:
        if self._ends:
            return super()._select_timeout()
        now = time.monotonic()
        times = [self._driver.wake_at(now), *self._dismissed.values()]
        if self._other_hosts is not None and (seconds := self._other_hosts.seconds_until_tick()) is not None:
            times.append(now + seconds)
        if self._discovery is not None:
            times.append(self._discovery.wake_at())
        return max(0.0, min(times) - now)

    def _heard(self, number: int, message: dict) -> None:
        if message.get("is") == "ready":
            has_state, keeps_state = (message.get(what) is True for what in ("has_state", "keeps_state"))
            port = message.get("port")
            port = port if type(port) is int and 0 < port <= _MOST_PORT else None
            self._driver.ready(number, has_state, keeps_state, port)

    def _wait(self, selector: selectors.BaseSelector, signals: socket.socket) -> None:
        super()._wait(selector, signals)
        if self._other_hosts is not None:
            self._other_hosts.tick()
            self._notice_ends(selector)  # Handles workers that were lost just now.

    def _notice_ends(self, selector: selectors.BaseSelector) -> None:
        if self._ends and self._exit_code is None:  # A signal ends the job, as any other job.
            super()._notice_ends(selector)
            return
        now = time.monotonic()
        for number, worker in sorted(self._numbered.items(), key=lambda item: item[0]):
            if worker.poll():
                self._ended(number, worker, now)
        if self._exit_code is None:
            if self._discovery is not None:
                self._discovery.tick()
            self._run_driver()

    def _ended(self, number: int, worker: Worker, now: float) -> None:
        del self._numbered[number]
        self._dismissed.pop(number, None)
        if isinstance(worker, LocalWorker):
            self._release(worker)
        else:
            worker.reap()
        if self._exit_code is not None:
            return
        if worker.code == 0:
            self._ended_well.append(number)
        elif not worker.is_secondary:
            self._show_start_up(worker)
        for line in self._driver.ended(number, worker.final_code, worker.describe_end(), now, worker.is_secondary):
            self._console.message(line)

    def _release(self, worker: LocalWorker) -> None:
        """Frees a worker on this machine that has ended."""
        # Processes that it started end with it. Its output is read before its end is reported.
        worker.kill_started()
        for fd in worker.streams:
            if fd in self._selector.get_map():
                self._read(self._selector, fd)
        if self._exit_code is not None:
            return
        self._forget(worker, self._selector)
        worker.close()

    def _run_driver(self) -> None:
        if self._local_environment is None:
            if self._discovery is not None and not self._discovery.has_list:
                return
            self._local_environment = self._make_local_environment()
        now = time.monotonic()
        actions = self._driver.next(now)
        while actions.start:  # Further actions may follow if a worker could not be started.
            self._do(actions)
            actions = self._driver.next(now)
        self._do(actions)
        for number in [number for number, when in self._dismissed.items() if now >= when]:
            self._numbered[number].signal(signal.SIGKILL)
            del self._dismissed[number]

    def _do(self, actions: Actions) -> None:
        for line in actions.say:
            self._console.message(line)
        for worker in actions.start:
            self._launch(worker.number, worker.host, worker.slot)
        if actions.places:
            self._begin_round(actions.places)
        if actions.changed is not None:
            for number, worker in self._driver.workers.items():
                if worker.trains:
                    self._service.say(number, {"is": "changed", **actions.changed})
        for number in actions.dismiss:
            self._service.say(number, {"is": "removed"})
            self._dismissed[number] = time.monotonic() + _GRACE_S
        for number in actions.kill:
            if number in self._numbered:
                self._numbered[number].signal(signal.SIGKILL)
        if actions.over is not None:
            self._finish(actions.over, actions.why)

    def _launch(self, number: int, host: str, slot: int) -> None:
        variables = {
            elastic_wire.WORKER: str(number),
            elastic_wire.SECRET: self._secret,
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_HOSTNAME": host_of(host).name,
            "HOROVOD_LOCAL_RANK": str(slot),
        }
        folder = self._plan.folder
        copies = None if folder is None else open_copy(folder, f"worker.{number}", self._console)
        if self._hosts.machine(host):
            worker = self._launch_on_other_host(number, host, variables, copies)
        else:
            assert self._local_environment is not None  # `_run_driver` has made it.
            variables[elastic_wire.ADDRESS] = self._service.address
            process = self._start_worker({**self._local_environment, **variables}, self._inherited)
            worker = LocalWorker(process, None, copies)
            self._show(worker)
            self._add(worker, self._guard, self._selector)
        self._rename(worker, f"worker {number}", None)
        self._numbered[number] = worker
        if self._plan.verbose:
            pid = f" (pid {worker.pid})" if worker.pid else ""
            self._console.message(f"worker {number}{pid} started on {host}")

    def _launch_on_other_host(
        self, number: int, host: str, variables: dict[str, str], copies: tuple[OutputCopy, OutputCopy] | None
    ) -> Worker:
        if self._other_hosts is None:
            raise LaunchError(f"host {host} is not this machine; all workers of this job must be on this machine")
        ours = interfaces.address_towards(host_of(host).name, self._other_hosts.interface)
        variables[elastic_wire.ADDRESS] = interfaces.with_port(ours, self._service.port_outside())
        worker = self._other_hosts.start(host, number, variables, self._hosts.slots().get(host, 1), copies)
        self._workers.append(worker)
        return worker

    def _begin_round(self, places: Mapping[int, dict]) -> None:
        rendezvous = self._rendezvous(places)
        self._size = len(places)
        self._console.tracebacks.clear()  # tracebacks of earlier rounds
        if self._plan.verbose:
            shown = ", ".join(f"worker {number} is rank {place['rank']}" for number, place in places.items())
            self._console.message(f"round {self._driver.round} of {len(places)}: {shown}")
        for number, place in places.items():
            worker = self._numbered.get(number)
            if worker is not None:
                worker.rank = place["rank"]
                self._rename(worker, str(place["rank"]), place["rank"])
            self._service.say(number, {"is": "round", "rendezvous": rendezvous, **place})

    def _rendezvous(self, places: Mapping[int, dict]) -> str:
        """Returns the address of a round's rendezvous: rank 0's host, with a port that rank 0 has chosen."""
        first = self._driver.workers[min(places, key=lambda number: places[number]["rank"])]
        hosts = [self._driver.workers[number].host for number in places]
        remote = [host for host in hosts if self._hosts.machine(host)]
        if self._other_hosts is None or not remote:
            host = LOOPBACK
        elif self._hosts.machine(first.host):
            host = self._other_hosts.rendezvous_host(first.host)
        else:
            host = interfaces.address_towards(host_of(remote[0]).name, self._other_hosts.interface)
        port = first.port
        if port is None:
            (port,) = free_ports(1, "" if remote else LOOPBACK)
        return interfaces.with_port(host, port)

    def _rename(self, worker: Worker, name: str, rank: int | None) -> None:
        worker.name = name if rank is None else f"rank {name}"
        bars, is_shown = self._console.shows_progress_of(rank), self._console.shows(rank)
        streams = worker.sinks[:2]  # the third takes its notes
        for sink, fd in zip(streams, (self._console.stdout, self._console.stderr), strict=True):
            assert isinstance(sink, Stream)
            sink.rename(self._console.prefix(name, fd), bars, is_shown)

    def _finish(self, code: int, why: str) -> None:
        self._why = why
        if why:
            self._console.message(f"{why}: the job ends")
            for number, worker in self._driver.workers.items():
                if worker.is_waiting:
                    self._service.say(number, {"is": "failed", "why": why})
        self._exit_code = code
        self._stop()

    def _end(self, selector: selectors.BaseSelector) -> None:
        with self._closing:
            if self._other_hosts is not None:
                self._signal_all(signal.SIGTERM)
                self._other_hosts.end(self._call)
            super()._end(selector)

    def _result(self) -> int:
        code = super()._result()
        return self._exit_code if self._exit_code is not None and not self._broken_pipe else code
