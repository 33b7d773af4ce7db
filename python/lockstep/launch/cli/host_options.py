"""The options that say on which hosts a job runs: those of every spelling of the launcher."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.cli.arguments import CommandLine
from lockstep.launch.placement import slurm
from lockstep.launch.placement.hosts import Host, assign_slots, parse_hosts, read_hostfile
from lockstep.launch.remote import shells
from lockstep.launch.remote.shells import RemoteShell, Srun, Ssh


def add_hosts(line: CommandLine, *, default: str) -> None:
    """Adds them, under Horovod's names.

    Args:
      line: To which.
      default: What holds without them.
    """
    group = line.group("hosts", "Hosts that are not this machine are reached over ssh, which must not ask anything.")
    add_lists(line, group.add_mutually_exclusive_group(), default=default)
    add_interfaces(line, group, "--network-interfaces", "--network-interface", "--nics", "--interface")
    add_ssh(line, group)
    add_ssh_program(line, group)


def add_lists(line: CommandLine, one: Any, *, default: str) -> None:
    """Adds the options that list hosts.

    Args:
      line: To which.
      one: An exclusive group of it.
      default: What holds without them.
    """
    line.add("-H", "--hosts", to=one, help=f"host:slots,..., also user@host:slots and [v6]:slots (default: {default})")
    line.add("-hostfile", "--hostfile", to=one, help="a file with lines `host slots=N`")


def add_interfaces(line: CommandLine, to: Any, *names: str, **details: Any) -> None:
    """Adds a spelling of the option for network interfaces, or several: `interfaces_of` reads them."""
    help = "for connections between hosts: an interface's name, its address, or a network (CIDR); several by commas"
    line.add(*names, to=to, dest="nics", action="append", **{"help": help, **details})


def add_ssh(line: CommandLine, to: Any) -> None:
    """Adds Horovod's options of ssh."""
    line.add("-p", "--ssh-port", to=to, type=int, help="of ssh on the hosts")
    line.add("-i", "--ssh-identity-file", to=to, help="with the key for ssh")


def add_ssh_program(line: CommandLine, to: Any) -> None:
    """Adds this project's options of ssh."""
    line.add("--ssh-options", to=to, help="more of ssh's, as one word: '-o LogLevel=ERROR'")
    line.add(
        "--ssh-command", to=to,
        help=f"in ssh's place; is given a host and a shell's words, as ssh is ({shells.VARIABLE})",
    )  # fmt: skip


def add_restarts(line: CommandLine, to: Any = None) -> None:
    """Adds the option for jobs that begin anew, to a group of the line."""
    line.add(
        "--restarts", to=to, type=int, metavar="N", help="start the job again when a worker fails, up to N times (0)"
    )


def interfaces_of(options: Any) -> list[str]:
    """The choices for connections between hosts."""
    return [name for names in options.nics or () for name in names.split(",")]


def ssh_of(environment: Mapping[str, str], **given: Any) -> Ssh:
    """How hosts are reached.

    Args:
      environment: The launcher's.
      **given: Attributes of `Ssh`; None for what was not said.

    Raises:
      LaunchError: a value is none.
    """
    said = {name: value for name, value in given.items() if value is not None}
    if environment.get(shells.VARIABLE):
        said.setdefault("program", environment[shells.VARIABLE])
    shell = Ssh(**said)
    shell.validate()
    return shell


def listed(hosts: str | None, hostfile: str | None, slots: int | None = None) -> list[Host] | None:
    """The hosts that options name; None without them.

    Args:
      hosts: host:slots,...
      hostfile: The name of a file.
      slots: Of hosts without a number; None: each needs one.

    Raises:
      LaunchError: they are none.
    """
    if hosts is not None:
        return parse_hosts(hosts, slots)
    return None if hostfile is None else read_hostfile(hostfile, slots)


def hosts_asked_for(
    options: Any, workers: int | None, gpus: Callable[[], int], environment: Mapping[str, str]
) -> tuple[list[Host], RemoteShell] | None:
    """The hosts that options, or an allocation of Slurm's, give a job, and what leads to them; None: this machine.

    Args:
      options: As parsed.
      workers: Of each host that has no number of its own (`-n`).
      gpus: Counts those that are visible here: so many workers otherwise, as hosts are alike.
      environment: The launcher's.

    Raises:
      LaunchError: they are none.
    """
    shell = ssh_of(
        environment, program=options.ssh_command, port=options.ssh_port, identity=options.ssh_identity_file,
        options=options.ssh_options,
    )  # fmt: skip
    if options.hosts is not None or options.hostfile is not None:
        found = _listed_or_counted(options, workers, gpus)
    elif environment.get("TF_CONFIG"):
        found = None
    else:
        found = slurm.hosts_of_allocation(environment, workers)
        if found is not None and workers is None and not slurm.asks_for_tasks(environment):
            found = [replace(host, slots=gpus() or host.slots) for host in found]
        if found is not None and options.ssh_command is None and not environment.get(shells.VARIABLE):
            shell = Srun(slurm.job_id(environment))
    if found is None:
        return None
    return assign_slots(sum(host.slots for host in found), found), shell


def _listed_or_counted(options: Any, workers: int | None, gpus: Callable[[], int]) -> list[Host]:
    """The hosts of a list, which may have no numbers of their own."""
    try:
        found = listed(options.hosts, options.hostfile)
    except LaunchError:
        return listed(options.hosts, options.hostfile, workers or gpus() or 1)
    if workers is not None:
        raise LaunchError(f"-n {workers} is for hosts without a number of workers, and all of them have one")
    return found
