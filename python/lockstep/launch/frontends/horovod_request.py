"""A job of Horovod's, as its command line and `horovod.run` ask for it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.launch.base import interfaces
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.cli.host_options import listed, ssh_of
from lockstep.launch.elastic.elastic_job import ElasticPlan
from lockstep.launch.frontends.horovod_elastic import ElasticOptions, check_whole
from lockstep.launch.frontends.horovod_settings import stall_timeout_s, variables_of
from lockstep.launch.local.attempts import check_restarts
from lockstep.launch.placement.hosts import Host, assign_slots
from lockstep.launch.remote.multi_host_job import JobHosts
from lockstep.launch.remote.shells import RemoteShell

START_TIMEOUT = "HOROVOD_START_TIMEOUT"


@dataclass
class Request:
    """What is asked for; nothing is checked before `validate`.

    Attributes:
      num_proc: How many processes.
      hosts: `host:slots,host:slots`; by default this machine, with as many slots as processes.
      hostfile: A file of them instead.
      network_interfaces: For connections between hosts, and the program's own; the first one is the engine's.
      start_timeout: Seconds until all processes must have initialized Horovod, instead of 60.
      output_filename: A folder for what they write.
      verbose: Whether to say what is started.
      timestamps: Whether lines of output begin with the time.
      controller: "", or which of gloo, mpi and jsrun was asked for.
      settings: By key, as in the configuration file.
      elastic: What was said about an elastic job, which is one where that is true.
      ssh_port: Of the hosts' ssh.
      ssh_identity_file: With the key for it.
      ssh_options: More of its options.
      ssh_command: In its place.
      restarts: How often a job that failed begins anew.
    """

    num_proc: int | None = None
    hosts: str | None = None
    hostfile: str | None = None
    network_interfaces: Collection[str] = ()
    start_timeout: int | None = None
    output_filename: str | None = None
    verbose: bool = False
    timestamps: bool = False
    controller: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    elastic: ElasticOptions = field(default_factory=ElasticOptions)
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    ssh_options: str | None = None
    ssh_command: str | None = None
    restarts: int | None = None

    def validate(self) -> None:
        """Looks at the values alone.

        Raises:
          LaunchError: they contradict each other, or ask for what this version cannot do.
        """
        for name, value in (("-np", self.num_proc), ("start timeout", self.start_timeout)):
            check_whole(name, value)
        self.elastic.validate(self.num_proc, self.hosts is not None or self.hostfile is not None)
        if self.controller not in ("", "gloo"):
            raise LaunchError(f"controller {self.controller}: horovodrun starts processes itself; wanted gloo, or none")
        if self.num_proc is None and not self.elastic:
            raise LaunchError("-np is missing: wanted the number of processes")
        if self.num_proc is not None and self.num_proc < 1:
            raise LaunchError(f"-np {self.num_proc}: wanted 1 or more processes")
        if self.hosts is not None and self.hostfile is not None:
            raise LaunchError("got hosts and a hostfile, wanted one of them")
        if self.start_timeout is not None and self.start_timeout < 1:
            raise LaunchError(f"start timeout: got {self.start_timeout}, wanted 1 or more seconds")
        if check_restarts(self.restarts) and self.elastic:
            raise LaunchError("--restarts is for jobs that are not elastic: those begin anew by themselves")

    def job_hosts(self, environment: Mapping[str, str]) -> JobHosts:
        """The hosts that get processes, each with their number, and how they are reached.

        Args:
          environment: The launcher's.

        Raises:
          LaunchError: there are too few slots; a network interface is not there; or what is said of ssh is wrong.
        """
        hosts = assign_slots(self.num_proc, self._listed() or [Host("localhost", self.num_proc)])
        if any(host.is_this_machine() for host in hosts):
            self._check_interfaces()
        # Each process chooses its GPU by its local rank.
        return JobHosts(hosts, self.shell(environment), assigns_gpus=False, is_horovod=True)

    def shell(self, environment: Mapping[str, str]) -> RemoteShell:
        """How hosts are reached that are not this machine.

        Args:
          environment: The launcher's.

        Raises:
          LaunchError: what is said of ssh is wrong.
        """
        return ssh_of(
            environment, program=self.ssh_command, port=self.ssh_port, identity=self.ssh_identity_file,
            options=self.ssh_options,
        )  # fmt: skip

    def plan(self, environment: Mapping[str, str]) -> ElasticPlan:
        """The elastic job.

        Args:
          environment: The launcher's.

        Raises:
          LaunchError: a network interface is not there, or a variable is no number.
        """
        self._check_interfaces()
        return self.elastic.plan(
            self.num_proc, self._listed(), environment, folder=self.output_filename, verbose=self.verbose
        )

    def _check_interfaces(self) -> None:
        for name in self.network_interfaces:
            interfaces.address_of(name)

    def _listed(self) -> list[Host] | None:
        return listed(self.hosts, self.hostfile)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """What all processes of the job are told beside their places.

        Args:
          environment: The launcher's.

        Raises:
          LaunchError: a variable of it is no number.
        """
        told = variables_of(self.settings)
        start = environment.get(START_TIMEOUT) if self.start_timeout is None else str(self.start_timeout)
        if start is not None:
            if not start.isdigit() or start == "0":
                raise LaunchError(f"{START_TIMEOUT}={start!r}: wanted seconds, 1 or more")
            told["LOCKSTEP_RENDEZVOUS_TIMEOUT"] = start
        if (stall := stall_timeout_s(self.settings, environment)) is not None:
            told["LOCKSTEP_STALL_TIMEOUT"] = str(stall)
        if self.network_interfaces:
            told[interfaces.VARIABLE] = next(iter(self.network_interfaces))
        # Who reads these knows interfaces by name alone.
        if names := [choice for choice in self.network_interfaces if interfaces.is_name(choice)]:
            told["HOROVOD_GLOO_IFACE"] = names[0]
            told["NCCL_SOCKET_IFNAME"] = ",".join(names)
        return told
