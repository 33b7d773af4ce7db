"""The workers of a job on several hosts, which one launcher supervises and ends together.

Workers on this machine are started directly, as in any job. Each other host has an agent (`agent`) that starts them
there. Workers are started when all agents have answered. From then on each side regularly signals to the other that it
is alive. So a job whose launcher is frozen or cut off ends as early as one whose launcher is killed.
"""

import functools
import itertools
import secrets
import selectors
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.launch.base import interfaces
from lockstep.launch.base.call_folder import VARIABLE as FOLDER
from lockstep.launch.base.output import Console
from lockstep.launch.base.places import places
from lockstep.launch.base.ports import PORTS, free_ports
from lockstep.launch.local.guard import Guard
from lockstep.launch.local.output_folder import Copies
from lockstep.launch.local.process import command_starter
from lockstep.launch.local.supervised_job import SupervisedJob
from lockstep.launch.placement import plan
from lockstep.launch.placement.hosts import Host
from lockstep.launch.placement.worker_environment import Rendezvous
from lockstep.launch.remote.connected_hosts import ConnectedHosts
from lockstep.launch.remote.remote_host import START_TIMEOUT_S, RemoteHost, assignment, unreachable
from lockstep.launch.remote.shells import RemoteShell, agent_command

# From SIGKILL on another host to the message that the worker has ended.
KILL_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class JobHosts:
    """The hosts of a job, and how they are reached.

    Attributes:
      hosts: In the order of their ranks, each with the number of its workers. Each host is named once.
      shell: Starts agents on the hosts that are not this machine.
      assigns_gpus: Whether each worker gets a GPU of its own.
      is_horovod: Whether workers also get Horovod's variables, and no TF_CONFIG. Programs of Horovod's take a TF_CONFIG
        for the cluster of a TensorFlow that distributes by itself.
    """

    hosts: Sequence[Host]
    shell: RemoteShell
    assigns_gpus: bool = True
    is_horovod: bool = False

    @functools.cached_property
    def other_hosts(self) -> Sequence[Host]:
        """The hosts that are not this machine. Names are looked up once."""
        return [host for host in self.hosts if not host.is_this_machine()]

    @property
    def is_here(self) -> bool:
        """Whether all hosts are this machine."""
        return not self.other_hosts

    @property
    def size(self) -> int:
        """The number of workers of the job."""
        return sum(host.slots for host in self.hosts)


class MultiHostJob(SupervisedJob):
    """The workers of a job on several hosts.

    Args:
      command: The words that each worker runs.
      job_hosts: The hosts.
      environment: The launcher's environment variables.
      console: Shows the output.
      copies: For each rank, the files that also get its stdout and its stderr.
      files: A folder with files for the workers, which also gets the files that they leave.
    """

    def __init__(
        self,
        command: Sequence[str],
        job_hosts: JobHosts,
        environment: Mapping[str, str],
        console: Console,
        copies: Copies | None = None,
        files: str | None = None,
    ):
        super().__init__(command_starter(command), [], console, copies, files)
        self._job_hosts = job_hosts
        self._base = dict(environment)
        self._kill_timeout_s = KILL_TIMEOUT_S
        contents = {}
        if files is not None:
            self._base[FOLDER] = files
            contents = {path.name: path.read_bytes() for path in Path(files).iterdir()}
        self._task = assignment(command, environment, job_hosts.assigns_gpus, contents, files)
        if self._task.interface and len(job_hosts.other_hosts) < len(job_hosts.hosts):
            interfaces.address_of(self._task.interface)
        starts_agent = agent_command(environment)
        self._remotes = {
            host: RemoteHost(host, job_hosts.shell.command(host, starts_agent), self._task, console)
            for host in job_hosts.other_hosts
        }
        self._connected = ConnectedHosts()
        for remote in self._remotes.values():
            self._connected.add(remote)
        self._has_begun = self._is_ending = False

    def ranks(self) -> Sequence[int]:
        """Implements `SupervisedJob.ranks`."""
        return range(self._job_hosts.size)

    def _make_guard(self) -> Guard:
        return Guard(max(self._task.silence_s, START_TIMEOUT_S))

    def _start(self, guard: Guard, selector: selectors.BaseSelector) -> None:
        self._guard, self._selector = guard, selector
        for host, remote in self._remotes.items():
            guard.watch(remote.connect(selector, self._lose))
            others = [other.name for other in self._job_hosts.hosts if other is not host]
            remote.prepare(host is self._job_hosts.hosts[0], others)

    def _running(self) -> bool:
        if not self._has_begun:
            return not self._end_requests and not self._broken_pipe
        return super()._running()

    def _select_timeout(self) -> float:
        least, most = self._connected.seconds_until_tick(), super()._select_timeout()
        return least if most is None else min(least, most)

    def _wait(self, selector: selectors.BaseSelector, signals: socket.socket) -> None:
        super()._wait(selector, signals)
        self._connected.tick()
        self._notice_ends(selector)  # Handles workers that were lost just now.
        if not self._has_begun:
            self._guard.alive()
            if self._running() and all(remote.is_ready for remote in self._remotes.values()):
                self._begin()

    def _begin(self) -> None:
        """Starts the workers, when all hosts are ready."""
        worker_variables = iter(plan.with_widths(self._worker_variables(self._rendezvous()), self._console))
        of_host = {host: list(itertools.islice(worker_variables, host.slots)) for host in self._job_hosts.hosts}
        for host in of_host.keys() - self._remotes.keys():  # This is at most one host: this machine.
            self._environments = plan.on_this_host(
                of_host[host], self._base, self._console, assigns_gpus=self._job_hosts.assigns_gpus
            )
        self._has_begun = True
        super()._start(self._guard, self._selector)
        for host, remote in self._remotes.items():
            self._workers += remote.start(of_host[host], self._copies)
        self._workers.sort(key=lambda worker: worker.known_rank)
        self._guard.set_silence(self._task.silence_s)
        self._connected.start_heartbeats(self._guard)

    def _rendezvous(self) -> Rendezvous:
        first, *others = self._job_hosts.hosts
        if first in self._remotes:
            address = self._remotes[first].rendezvous
            assert address is not None  # Its agent is ready.
            host, port = address
        else:
            host = interfaces.rendezvous_host(first.name, self._task.interface, [other.name for other in others])
            (port,) = free_ports(1, "")
        names = [host.name for host in self._job_hosts.hosts for _ in range(host.slots)]
        addresses = [interfaces.with_port(name, PORTS.start + i) for i, name in enumerate(names)]
        return Rendezvous(interfaces.with_port(host, port), secrets.token_hex(32), addresses)

    def _worker_variables(self, rendezvous: Rendezvous) -> list[dict[str, str]]:
        """Returns the variables of each worker, by rank."""
        has_tf_config = self._job_hosts.size > 1 and not self._job_hosts.is_horovod
        return [
            {
                **place.variables(),
                **rendezvous.variables(),
                **(place.horovod_variables() if self._job_hosts.is_horovod else {}),
                **({"TF_CONFIG": rendezvous.tf_config(place.rank)} if has_tf_config else {}),
            }
            for place in places([(host.name, host.slots) for host in self._job_hosts.hosts])
        ]

    def _lose(self, remote: RemoteHost, why: str) -> None:
        if self._is_ending:
            return
        if not self._has_begun:
            raise unreachable(remote, why)
        remote.give_up(why)

    def _end(self, selector: selectors.BaseSelector) -> None:
        self._is_ending = True
        self._signal_all(signal.SIGTERM)
        self._connected.end(selector, self._call)
        super()._end(selector)
