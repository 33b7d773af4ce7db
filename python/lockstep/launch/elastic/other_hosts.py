"""The workers of an elastic job on other hosts. A host gets an agent (`agent`) with its first worker."""

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
from lockstep.launch.local.output_folder import OutputCopy
from lockstep.launch.remote.connected_hosts import ConnectedHosts
from lockstep.launch.remote.remote_host import RemoteHost, assignment
from lockstep.launch.remote.remote_worker import RemoteWorker
from lockstep.launch.remote.shells import RemoteShell, agent_command


@dataclass(frozen=True)
class RemoteAccess:
    """How an elastic job starts workers on other hosts.

    Attributes:
      command: The words that each worker runs.
      shell: Starts agents there.
    """

    command: Sequence[str]
    shell: RemoteShell


class OtherHosts:
    """The hosts of an elastic job that are not this machine.

    Args:
      access: How workers are started there.
      environment: The launcher's, which is forwarded in part.
      console: Shows the output.
      files: A folder with a function for the workers, which also gets their results.
      names: Returns the names of all hosts.
    """

    def __init__(
        self,
        access: RemoteAccess,
        environment: Mapping[str, str],
        console: Console,
        files: str | None,
        names: Callable[[], Sequence[str]],
    ):
        self._access, self._console, self._names = access, console, names
        self._starts_agent = agent_command(environment)
        contents = {} if files is None else {FUNCTION: Path(files, FUNCTION).read_bytes()}
        self._task = assignment(access.command, environment, False, contents, files)
        self.interface = self._task.interface
        self._agents: dict[str, _AgentHost] = {}
        self._connected = ConnectedHosts()

    def attach(self, guard: Guard, selector: selectors.BaseSelector) -> None:
        """Sets the job's guard, and the selector of its events."""
        self._guard, self._selector = guard, selector

    def start(
        self,
        target: str,
        number: int,
        variables: Mapping[str, str],
        slots: int,
        copies: tuple[OutputCopy, OutputCopy] | None,
    ) -> RemoteWorker:
        """Starts a worker on another host. If the host cannot be reached, the worker counts as lost.

        Args:
          target: The host's ssh target.
          number: The worker's number.
          variables: The worker's own variables.
          slots: The host's slots.
          copies: The files that also get the worker's output.
        """
        host = self._agents.get(target) or self._make(target)
        worker = RemoteWorker(host.name, number, host.say, self._console, copies)
        try:
            if target not in self._agents:
                self._connect(target, host)
        except LaunchError as error:
            worker.end(LOST, f"could not be started: {error}")
        else:
            host.add(worker, variables, slots)
        return worker

    def _make(self, target: str) -> "_AgentHost":
        host = host_of(target)
        return _AgentHost(host, self._access.shell.command(host, self._starts_agent), self._task, self._console)

    def _connect(self, target: str, host: "_AgentHost") -> None:
        self._guard.watch(host.connect(self._selector, lambda lost, why: self._lose(target, why)))
        self._agents[target] = host
        self._connected.add(host)
        self._guard.set_silence(self._task.silence_s)
        self._connected.start_heartbeats(self._guard)
        ours = interfaces.address_towards(host.name, self.interface)
        host.prepare(True, [ours, *(host_of(name).name for name in self._names() if name != target)])

    def _lose(self, target: str, why: str) -> None:
        host = self._agents.pop(target, None)
        if host is not None:
            self._connected.remove(host)
            for worker in host.workers.values():
                worker.end(LOST, f"was lost with host {host.name}: {why}")

    def rendezvous_host(self, target: str) -> str:
        """Returns the name or address at which other workers reach a worker on that host."""
        host = self._agents.get(target)
        return host_of(target).name if host is None or host.rendezvous is None else host.rendezvous[0]

    def tick(self) -> None:
        """Does what is due after some time (`RemoteHost.tick`)."""
        self._connected.tick()

    def seconds_until_tick(self) -> float | None:
        """Returns for how many seconds `tick` need not be called; None: without limit."""
        return self._connected.seconds_until_tick() if self._agents else None

    def end(self, call: Callable[[Callable[[int], None], int], None]) -> None:
        """Ends all workers there; `call` calls the functions of the selector."""
        self._connected.end(self._selector, call)


class _AgentHost(RemoteHost):
    """A host whose workers are known by their numbers. If its agent refuses a task, the host counts as lost."""

    def add(self, worker: RemoteWorker, variables: Mapping[str, str], slots: int) -> None:
        """Asks the agent to start one more worker, as soon as the agent runs."""
        task = self._task
        self.workers[worker.number] = worker
        self.say(
            {
                "is": "add", "rank": worker.number, "command": list(task.command),
                "environment": dict(task.environment), "variables": dict(variables), "of_host": max(1, slots),
            }
        )  # fmt: skip

    def _accepts_file(self, name: str) -> bool:
        return is_result(name)

    def _refuse(self, why: str, code: int) -> None:
        del code
        self._lose(why)
