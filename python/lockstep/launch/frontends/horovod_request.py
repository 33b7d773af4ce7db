"""A request for a job of Horovod's, from its command line or from `horovod.run`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.launch.base import interfaces
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.seconds import whole_seconds
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
    """A request for a job; its values are not checked before `validate`.

    Attributes:
      num_proc: The number of processes.
      hosts: `host:slots,host:slots`; by default this machine, with a slot for each process.
      hostfile: A file with the hosts, instead of `hosts`.
      network_interfaces: The interfaces for connections between hosts. The engine uses the first one; the program may
        use all of them.
      start_timeout: The seconds until all processes must have initialized Horovod, instead of 60.
      output_filename: A folder for the processes' output.
      verbose: Whether to show what is started.
      timestamps: Whether lines of output begin with the time.
      controller: The controller that was asked for: gloo, mpi, jsrun, or "" for none.
      settings: key -> value, as in the configuration file.
      elastic: The options of an elastic job.
      ssh_port: The port of the hosts' ssh service.
      ssh_identity_file: The file with the key for ssh.
      ssh_options: Further options of ssh.
      ssh_command: A program in place of ssh.
      restarts: How often a job that failed is restarted.
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
        """Checks the values, without looking at hosts or environment.

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
            raise LaunchError("--restarts is for jobs that are not elastic: elastic jobs restart by themselves")

    def job_hosts(self, environment: Mapping[str, str]) -> JobHosts:
        """Returns the hosts that get processes, each with the number of its processes.

        Args:
          environment: The launcher's environment variables.

        Raises:
          LaunchError: there are too few slots, a network interface does not exist, or an option of ssh is wrong.
        """
        assert self.num_proc is not None  # `validate` refuses a job that is not elastic without it.
        hosts = assign_slots(self.num_proc, self._listed() or [Host("localhost", self.num_proc)])
        if any(host.is_this_machine() for host in hosts):
            self._check_interfaces()
        # Each process chooses its GPU by its local rank.
        return JobHosts(hosts, self.shell(environment), assigns_gpus=False, is_horovod=True)

    def shell(self, environment: Mapping[str, str]) -> RemoteShell:
        """Returns the shell that starts commands on hosts other than this machine.

        Args:
          environment: The launcher's environment variables.

        Raises:
          LaunchError: an option of ssh is wrong.
        """
        return ssh_of(
            environment, program=self.ssh_command, port=self.ssh_port, identity=self.ssh_identity_file,
            options=self.ssh_options,
        )  # fmt: skip

    def plan(self, environment: Mapping[str, str]) -> ElasticPlan:
        """Returns the plan of the elastic job.

        Args:
          environment: The launcher's environment variables.

        Raises:
          LaunchError: a network interface does not exist, or a variable is not a number.
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
        """Returns the variables that all processes of the job get, without the variables of their places.

        Args:
          environment: The launcher's environment variables.

        Raises:
          LaunchError: a variable of the environment is not a number.
        """
        variables = variables_of(self.settings)
        start = environment.get(START_TIMEOUT) if self.start_timeout is None else str(self.start_timeout)
        if start is not None:
            variables["LOCKSTEP_RENDEZVOUS_TIMEOUT"] = str(whole_seconds(START_TIMEOUT, start))
        if (stall := stall_timeout_s(self.settings, environment)) is not None:
            variables["LOCKSTEP_STALL_TIMEOUT"] = str(stall)
        if self.network_interfaces:
            variables[interfaces.VARIABLE] = next(iter(self.network_interfaces))
        # Programs that read these variables only understand names of interfaces.
        if names := [choice for choice in self.network_interfaces if interfaces.is_name(choice)]:
            variables["HOROVOD_GLOO_IFACE"] = names[0]
            variables["NCCL_SOCKET_IFNAME"] = ",".join(names)
        return variables
