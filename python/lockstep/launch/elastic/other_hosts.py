"""The workers of an elastic job that are on other hosts. A host has an agent (`agent`) from its first worker on."""

import os
import selectors
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.launch.base import interfaces
from lockstep.launch.base.call_folder import FUNCTION, is_result
from lockstep.launch.base.errors import LOST, LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.elastic.host_pool import host_of
from lockstep.launch.local.guard import Guard
from lockstep.launch.local.output_folder import Copy
from lockstep.launch.remote.connected_hosts import Remotes
from lockstep.launch.remote.forwarded_environment import leaving
from lockstep.launch.remote.multi_host_job import silence_of
from lockstep.launch.remote.remote_host import Assignment, RemoteHost
from lockstep.launch.remote.remote_worker import RemoteWorker
from lockstep.launch.remote.shells import RemoteShell, agent_command


@dataclass(frozen=True)
class Reach:
    """How an elastic job gets to other hosts.

    Attributes:
      command: What each worker runs.
      shell: Leads to them.
    """

    command: Sequence[str]
    shell: RemoteShell


class Elsewhere:
    """Other hosts of an elastic job.

    Args:
      reach: How it gets there.
      environment: What travels to them of it.
      console: Where output goes.
      files: A folder with a function for the workers, which gets their results.
      names: Gives the names of all hosts.
    """

    def __init__(
        self,
        reach: Reach,
        environment: Mapping[str, str],
        console: Console,
        files: str | None,
        names: Callable[[], Sequence[str]],
    ):
        self._reach, self._console, self._names = reach, console, names
        self.interface = environment.get(interfaces.VARIABLE, "")
        self._silence_s = silence_of(environment)
        self._starts_agent = agent_command(environment)
        contents = {} if files is None else {FUNCTION: Path(files, FUNCTION).read_bytes()}
        self._task = Assignment(
            reach.command, leaving(environment), os.getcwd(), self.interface, False, self._silence_s, contents, files
        )
        self._there: dict[str, _Host] = {}
        self._together = Remotes()

    def attach(self, guard: Guard, selector: selectors.BaseSelector) -> None:
        """Says what watches over the job, and what waits for its events."""
        self._guard, self._selector = guard, selector

    def start(
        self, target: str, number: int, variables: Mapping[str, str], slots: int, copies: tuple[Copy, Copy] | None
    ) -> RemoteWorker:
        """Starts a worker, on a host that is called so; one that cannot be reached loses it.

        Args:
          target: As ssh is told.
          number: The worker's.
          variables: What it is told.
          slots: Of its host.
          copies: Where its output is kept as well.
        """
        host = self._there.get(target) or self._make(target)
        worker = RemoteWorker(host.name, number, host.say, self._console, copies)
        try:
            if target not in self._there:
                self._connect(target, host)
        except LaunchError as error:
            worker.end(LOST, f"could not be started: {error}")
        else:
            host.add(worker, variables, slots)
        return worker

    def _make(self, target: str) -> "_Host":
        host = host_of(target)
        return _Host(host, self._reach.shell.command(host, self._starts_agent), self._task, self._console)

    def _connect(self, target: str, host: "_Host") -> None:
        self._guard.watch(host.connect(self._selector, lambda lost, why: self._lose(target, why)))
        self._there[target] = host
        self._together.add(host)
        self._guard.set_silence(self._silence_s)
        self._together.begin_beating(self._guard)
        ours = interfaces.address_towards(host.name, self.interface)
        host.prepare(True, [ours, *(host_of(name).name for name in self._names() if name != target)])

    def _lose(self, target: str, why: str) -> None:
        host = self._there.pop(target, None)
        if host is not None:
            self._together.remove(host)
            for worker in host.workers.values():
                worker.end(LOST, f"was lost with host {host.name}: {why}")

    def meeting_host(self, target: str) -> str:
        """By which name or address the others reach a worker on that host."""
        host = self._there.get(target)
        return host_of(target).name if host is None or host.meeting is None else host.meeting[0]

    def attend(self) -> None:
        """What has to be done though nothing happened."""
        self._together.attend()

    def patience(self) -> float | None:
        """For how many seconds `attend` is not needed; None: for any time."""
        return self._together.patience() if self._there else None

    def end(self, call: Callable[[Callable[[int], None], int], None]) -> None:
        """Ends all that runs there; `call` calls what the selector has."""
        self._together.end(self._selector, call)


class _Host(RemoteHost):
    """One of them. Its workers are known by their numbers; what it refuses it is lost with."""

    def add(self, worker: RemoteWorker, variables: Mapping[str, str], slots: int) -> None:
        """Starts one more; the agent does so when it is there."""
        task = self._task
        self.workers[worker.rank] = worker
        self.say(
            {
                "is": "add", "rank": worker.rank, "command": list(task.command), "environment": dict(task.environment),
                "variables": dict(variables), "of_host": max(1, slots),
            }
        )  # fmt: skip

    def _may_be_left(self, name: str) -> bool:
        return is_result(name)

    def _refuse(self, why: str, code: int) -> None:
        del code
        self._lose(why)
