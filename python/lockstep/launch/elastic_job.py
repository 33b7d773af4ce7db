"""Runs an elastic job: does what its driver decides, and tells it what happens."""

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.launch import elastic_wire
from lockstep.launch.cluster import KEEP_MEMORY, available_cpus, sets_malloc, threads_per_worker
from lockstep.launch.elastic_driver import Actions, Driver, Limits
from lockstep.launch.elastic_hosts import SCRIPT_TIMEOUT_S, Cooldown, Hosts, parse_discovered, start_script
from lockstep.launch.elastic_service import Service
from lockstep.launch.errors import LaunchError
from lockstep.launch.folder import open_copy
from lockstep.launch.guard import Guard, kill_group
from lockstep.launch.job import Job
from lockstep.launch.output import Console
from lockstep.launch.ports import free_ports
from lockstep.launch.process import Start
from lockstep.launch.tasks import LOOPBACK
from lockstep.launch.worker import Worker

# From the end of one run of the host discovery script to the start of the next.
_DISCOVER_EVERY_S = 1.0
# More than any list of hosts has: a script that goes on has lost its way.
_MOST_PRINTED_BYTES = 1 << 20
# For workers that are told to end before they are killed.
_GRACE_S = 10.0
_OF_A_ROUND = ("TF_CONFIG", "LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE")


@dataclass(frozen=True)
class Plan:
    """What an elastic job is to be.

    Attributes:
      limits: How many workers.
      hosts: host -> slots, where no script says it.
      script: The host discovery script.
      slots: Of hosts for which the script says no number.
      cooldown: Of hosts on which a worker failed.
      folder: Where output is kept as well: worker.<number>/stdout and stderr.
      verbose: Whether to say what is started, and with which ranks.
    """

    limits: Limits
    hosts: Mapping[str, int] = field(default_factory=dict)
    script: str | None = None
    slots: int | None = None
    cooldown: Cooldown | None = None
    folder: str | None = None
    verbose: bool = False


class ElasticJob(Job):
    """The workers of a job whose number changes.

    Args:
      start: Starts one.
      plan: The job.
      environment: What every worker inherits.
      console: Where output goes.
      files: As of `Job`.
    """

    def __init__(
        self,
        start: Start,
        plan: Plan,
        environment: Mapping[str, str],
        console: Console,
        files: str | None = None,
    ):
        super().__init__(start, [], console, files=files)
        self._plan = plan
        self._hosts = Hosts(plan.cooldown)
        self._driver = Driver(plan.limits, self._hosts)
        self._secret = secrets.token_hex(32)
        self._environment = environment
        self._told: dict[str, str] | None = None  # what is the same for all workers, once there is a list of hosts
        # By number: those that run.
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
        self._service = self._closing.enter_context(Service(self._secret, selector, self._heard))
        if self._plan.script is None:
            self._hosts.found(self._plan.hosts)
        else:
            self._discovery = self._closing.enter_context(
                Discovery(self._plan.script, self._plan.slots, self._hosts, selector, self._console)
            )
            self._discovery.attend()
        self._go_on()

    @property
    def why(self) -> str:
        """Why the job failed, if it did by itself."""
        return self._why

    def ranks(self) -> Sequence[int]:
        """Those of the last round; without one, the numbers of the workers that ended well."""
        return range(self._size) if self._size else sorted(self._ended_well)

    def _shared(self, base: Mapping[str, str]) -> dict[str, str]:
        """What is the same for all workers. Ranks are told before each round."""
        told = {name: value for name, value in base.items() if name not in _OF_A_ROUND}
        told[elastic_wire.ADDRESS], told[elastic_wire.SECRET] = self._service.address, self._secret
        told["HOROVOD_ELASTIC"] = "1"
        told.setdefault("PYTHONUNBUFFERED", "1")
        if not sets_malloc(base):
            told.update(KEEP_MEMORY)
        expected = min(self._plan.limits.max_np, max(1, sum(self._hosts.slots().values())))
        if expected > 1:
            for name, value in threads_per_worker(available_cpus(), expected).items():
                told.setdefault(name, value)
        return told

    @property
    def _ends(self) -> bool:
        """Whether nobody is started any more."""
        return self._exit_code is not None or self._told_to_end > 0 or self._kill_at is not None

    def _running(self) -> bool:
        return super()._running() if self._ends else True

    def _patience(self) -> float | None:
        if self._ends:
            return super()._patience()
        now = time.monotonic()
        times = [self._driver.wake_at(now), *self._dismissed.values()]
        if self._discovery is not None:
            times.append(self._discovery.wake_at())
        return max(0.0, min(times) - now)

    def _heard(self, number: int, message: dict) -> None:
        if message.get("is") == "ready":
            self._driver.ready(number, *(message.get(what) is True for what in ("has_state", "keeps_state")))

    def _notice_ends(self, selector: selectors.BaseSelector) -> None:
        if self._ends and self._exit_code is None:  # By a signal, as any job.
            super()._notice_ends(selector)
            return
        for number, worker in sorted(self._numbered.items(), key=lambda item: item[0]):
            if worker.poll():
                self._ended(number, worker)
        if self._exit_code is None:
            if self._discovery is not None:
                self._discovery.attend()
            self._go_on()

    def _ended(self, number: int, worker: Worker) -> None:
        del self._numbered[number]
        self._dismissed.pop(number, None)
        # What it started ends with it, and what it wrote is read before its end is told.
        kill_group(worker.pid, signal.SIGKILL)
        for fd in worker.streams:
            if fd in self._selector.get_map():
                self._read(self._selector, fd)
        if self._exit_code is not None:
            return
        # Files that are opened later may get the same numbers.
        for fd in worker.streams:
            del self._by_pipe[fd]
            if fd in self._selector.get_map():  # Somebody holds it that has left the worker's group.
                self._selector.unregister(fd)
        worker.close()
        if worker.code == 0:
            self._ended_well.append(number)
        for line in self._driver.ended(number, worker.code, worker.describe_end(), time.monotonic()):
            self._console.message(line)

    def _go_on(self) -> None:
        if self._told is None:
            if self._discovery is not None and not self._discovery.has_list:
                return
            self._told = self._shared(self._environment)
        now = time.monotonic()
        actions = self._driver.next(now)
        while actions.start:  # Others may follow from what could not be started.
            self._do(actions)
            actions = self._driver.next(now)
        self._do(actions)
        for number in [number for number, when in self._dismissed.items() if now >= when]:
            kill_group(self._numbered[number].pid, signal.SIGKILL)
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
                kill_group(self._numbered[number].pid, signal.SIGKILL)
        if actions.over is not None:
            self._finish(actions.over, actions.why)

    def _launch(self, number: int, host: str, slot: int) -> None:
        environment = {
            **self._told,
            elastic_wire.WORKER: str(number),
            "HOROVOD_HOSTNAME": host,
            "HOROVOD_LOCAL_RANK": str(slot),
        }
        process = self._start_worker(environment, self._inherited)
        folder = self._plan.folder
        copies = None if folder is None else open_copy(folder, f"worker.{number}", self._console)
        worker = Worker(process, -1, copies)
        self._show(worker)
        self._rename(worker, f"worker {number}", False)
        self._numbered[number] = worker
        self._add(worker, self._guard, self._selector)
        if self._plan.verbose:
            self._console.message(f"worker {number} (pid {worker.pid}) is started on {host}")

    def _begin_round(self, places: Mapping[int, dict]) -> None:
        (port,) = free_ports(1)
        self._size = len(places)
        if self._plan.verbose:
            shown = ", ".join(f"worker {number} is rank {place['rank']}" for number, place in places.items())
            self._console.message(f"round {self._driver.round} of {len(places)}: {shown}")
        for number, place in places.items():
            worker = self._numbered.get(number)
            if worker is not None:
                worker.rank = place["rank"]
                self._rename(worker, str(place["rank"]), place["rank"] == 0)
            self._service.say(number, {"is": "round", "rendezvous": f"{LOOPBACK}:{port}", **place})

    def _rename(self, worker: Worker, name: str, shows_progress: bool) -> None:
        worker.name = name if name.startswith("worker") else f"rank {name}"
        for stream in worker.streams.values():
            stream.rename(b"[%s] " % name.encode(), shows_progress)

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
            super()._end(selector)

    def _result(self) -> int:
        code = super()._result()
        return self._exit_code if self._exit_code is not None and not self._broken_pipe else code


class Discovery:
    """Runs the host discovery script again and again, one at a time, beside everything else.

    Args:
      script: It.
      slots: Of hosts for which it says no number.
      hosts: Is told what it printed.
      selector: Calls the functions that are registered with it.
      console: Is told when it fails, once for each way of failing.

    Attributes:
      has_list: The first list has come. Until then a failure is a LaunchError, of `attend` or of the selector's call.
    """

    def __init__(
        self, script: str, slots: int | None, hosts: Hosts, selector: selectors.BaseSelector, console: Console
    ):
        self._script, self._slots, self._hosts = script, slots, hosts
        self._selector, self._console = selector, console
        self._process: subprocess.Popen | None = None
        self._printed = b""
        self._at = 0.0  # when it was started, or will be
        self._complaint = ""
        self.has_list = False

    def wake_at(self) -> float:
        """When `attend` has to be called though nothing happened."""
        return self._at + (SCRIPT_TIMEOUT_S if self._process is not None else 0)

    def attend(self) -> None:
        """Starts it, where it is time; ends it where it takes too long."""
        if time.monotonic() < self.wake_at():
            return
        if self._process is not None:
            self._close(f"host discovery script {self._script!r}: no end after {SCRIPT_TIMEOUT_S} s")
            return
        try:
            self._process, self._printed, self._at = start_script(self._script), b"", time.monotonic()
        except LaunchError as error:
            self._close(str(error))
            return
        self._selector.register(self._process.stdout, selectors.EVENT_READ, self._read)

    def _read(self, events: int) -> None:
        del events
        chunk = os.read(self._process.stdout.fileno(), 1 << 16)
        self._printed += chunk
        if len(self._printed) > _MOST_PRINTED_BYTES:
            self._close(f"host discovery script {self._script!r} printed more than {_MOST_PRINTED_BYTES >> 20} MiB")
            return
        if chunk:
            return
        complaint = ""
        try:
            self._take(self._process.wait(), self._printed)
        except LaunchError as error:
            complaint = str(error)
        self._close(complaint)

    def _take(self, code: int, printed: bytes) -> None:
        if code:
            how = f"failed with exit code {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
            raise LaunchError(f"host discovery script {self._script!r} {how}")
        self._hosts.found(parse_discovered(printed.decode(errors="replace"), self._slots, self._script))
        self.has_list = True

    def _close(self, complaint: str) -> None:
        self._at = time.monotonic() + _DISCOVER_EVERY_S
        if self._process is not None:
            self._selector.unregister(self._process.stdout)
            _end_script(self._process)
            self._process = None
        if complaint and not self.has_list:
            raise LaunchError(complaint)
        if complaint and complaint != self._complaint:
            self._console.message(f"{complaint}; the hosts stay as they are")
        self._complaint = complaint

    def __enter__(self) -> "Discovery":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._close("")


def _end_script(process: subprocess.Popen) -> None:
    kill_group(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
