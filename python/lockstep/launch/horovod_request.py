"""A job of Horovod's, as its command line and `horovod.run` ask for it."""

import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.launch.elastic_job import Plan
from lockstep.launch.elastic_request import Elastic, check_whole
from lockstep.launch.errors import LaunchError
from lockstep.launch.horovod_settings import stall_timeout_s, variables_of
from lockstep.launch.hosts import Host, parse_hosts, place, read_hostfile

START_TIMEOUT = "HOROVOD_START_TIMEOUT"


@dataclass
class Request:
    """What is asked for; nothing is checked before `validate`.

    Attributes:
      num_proc: How many processes.
      hosts: `host:slots,host:slots`; by default this machine, with as many slots as processes.
      hostfile: A file of them instead.
      network_interfaces: For the program's own network traffic; names of interfaces of this machine.
      start_timeout: Seconds until all processes must have initialized Horovod, instead of 60.
      output_filename: A folder for what they write.
      verbose: Whether to say what is started.
      timestamps: Whether lines of output begin with the time.
      controller: "", or which of gloo, mpi and jsrun was asked for.
      settings: By key, as in the configuration file.
      elastic: What was said about an elastic job, which is one where that is true.
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
    elastic: Elastic = field(default_factory=Elastic)

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
        existing = [name for _, name in socket.if_nameindex()]
        for name in self.network_interfaces:
            if name not in existing:
                raise LaunchError(f"network interface {name!r} is not there; this machine has {', '.join(existing)}")

    def places(self) -> list[Host]:
        """The hosts that get processes, each with their number.

        Raises:
          LaunchError: there are too few slots, or a host is not this machine.
        """
        return place(self.num_proc, self._listed() or [Host("localhost", self.num_proc)])

    def plan(self, environment: Mapping[str, str]) -> Plan:
        """The elastic job.

        Args:
          environment: The launcher's.

        Raises:
          LaunchError: a host is not this machine, or a variable is no number.
        """
        return self.elastic.plan(
            self.num_proc, self._listed(), environment, folder=self.output_filename, verbose=self.verbose
        )

    def _listed(self) -> list[Host] | None:
        if self.hosts is not None:
            return parse_hosts(self.hosts)
        return None if self.hostfile is None else read_hostfile(self.hostfile)

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
        if (stall := stall_timeout_s(self.settings)) is not None:
            told["LOCKSTEP_STALL_TIMEOUT"] = str(stall)
        if self.network_interfaces:
            told["HOROVOD_GLOO_IFACE"] = next(iter(self.network_interfaces))
            told["NCCL_SOCKET_IFNAME"] = ",".join(self.network_interfaces)
        return told
