"""How an agent is started on another host: by ssh, by what stands in for it, or by srun inside of an allocation."""

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
# An agent that nobody can type a password for; and a host that does not answer is one that is not there.
_SSH_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20")


class RemoteShell(Protocol):
    """Starts programs on hosts."""

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        """The words that run a command on a host, here; its input and output are theirs."""


@dataclass(frozen=True)
class Ssh:
    """By ssh.

    Attributes:
      program: A command in its place, with its options; it is given a host and the words of a shell, as ssh is.
      port: Of its service.
      identity: A file with a key.
      options: More of its options.
    """

    program: str = _SSH
    port: int | None = None
    identity: str | None = None
    options: str = ""

    def validate(self) -> None:
        """LaunchError: a value is none."""
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
            raise LaunchError(f"ssh identity file {self.identity}: there is none")

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        """As of `RemoteShell`."""
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
    """By srun, in an allocation of Slurm's.

    Attributes:
      job: Its number.
    """

    job: str

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        """As of `RemoteShell`."""
        return [*slurm.srun_command(self.job, host.name), *words]


def agent_command(environment: Mapping[str, str]) -> list[str]:
    """The words that run the agent: by this interpreter, with modules from where this process has them."""
    paths = [environment["PYTHONPATH"]] if environment.get("PYTHONPATH") else []
    root = Path(__file__).resolve().parents[3]
    if not {"site-packages", "dist-packages"} & set(root.parts):
        paths.append(str(root))
    return ["env", f"PYTHONPATH={os.pathsep.join(paths)}", sys.executable, "-m", "lockstep.launch.remote.agent"]
