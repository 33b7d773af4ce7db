"""Starts the agent on another host: with ssh, with a program in its place, or with srun inside a Slurm allocation."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.placement import slurm
from lockstep.launch.placement.hosts import Host

VARIABLE = "LOCKSTEP_SSH"
_SSH = "ssh"
# Nobody can type a password for an agent. A host that does not answer in time counts as unreachable.
_SSH_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20")


class RemoteShell(Protocol):
    """A program that starts commands on other hosts."""

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        """Returns the local command that runs `words` on a host, and connects their input and output."""


@dataclass(frozen=True)
class Ssh:
    """A remote shell that uses ssh.

    Attributes:
      program: ssh, or a command in its place with its options. Like ssh it gets a host, and a command for a shell.
      port: The port of the hosts' ssh service.
      identity: A file with a key.
      options: Further options of ssh.
    """

    program: str = _SSH
    port: int | None = None
    identity: str | None = None
    options: str = ""

    def validate(self) -> None:
        """Checks the values.

        Raises:
          LaunchError: a value is not valid.
        """
        for name, text in (("ssh command", self.program), ("ssh options", self.options)):
            try:
                words = shlex.split(text)
            except ValueError as error:
                raise LaunchError(f"{name} {text!r}: {error}") from None
            if not words and text is self.program:
                raise LaunchError(f"{name}: got {text!r}, wanted one like ssh")
        if self.port is not None and (type(self.port) is not int or not 1 <= self.port <= 65535):
            raise LaunchError(f"ssh port: got {self.port!r}, wanted 1 to 65535")
        if self.identity is not None and not os.path.isfile(self.identity):
            raise LaunchError(f"ssh identity file {self.identity} does not exist")

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        """Implements `RemoteShell.command`."""
        program = shlex.split(self.program)
        if os.path.basename(program[0]) == _SSH:
            program += _SSH_OPTIONS
        if self.port is not None:
            program += ["-p", str(self.port)]
        if self.identity is not None:
            program += ["-i", self.identity]
        return [*program, *shlex.split(self.options), host.target, "exec " + shlex.join(words)]


@dataclass(frozen=True)
class Srun:
    """A remote shell that uses srun, in an allocation of Slurm's.

    Attributes:
      job: The number of the Slurm job.
    """

    job: str

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        """Implements `RemoteShell.command`."""
        return [*slurm.srun_command(self.job, host.name), *words]


def agent_command(environment: Mapping[str, str]) -> list[str]:
    """Returns the command that runs the agent: with this interpreter, and modules from this process's folders."""
    paths = [environment["PYTHONPATH"]] if environment.get("PYTHONPATH") else []
    root = Path(__file__).resolve().parents[3]
    if not {"site-packages", "dist-packages"} & set(root.parts):
        paths.append(str(root))
    return ["env", f"PYTHONPATH={os.pathsep.join(paths)}", sys.executable, "-m", "lockstep.launch.remote.agent"]
