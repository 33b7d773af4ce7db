"""The options for a job's hosts, which all launchers share."""

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
    """Adds all options for hosts, under Horovod's names.

    Args:
      line: The command line.
      default: The default's description in the help.
    """
    group = line.group("hosts", "Hosts other than this machine are reached over ssh, which must need no password.")
    add_lists(line, group.add_mutually_exclusive_group(), default=default)
    add_interfaces(line, group, "--network-interfaces", "--network-interface", "--nics", "--interface")
    add_ssh(line, group)
    add_ssh_program(line, group)


def add_lists(line: CommandLine, one: Any, *, default: str) -> None:
    """Adds the options that list hosts.

    Args:
      line: The command line.
      one: An exclusive group of it.
      default: The default's description in the help.
    """
    line.add("-H", "--hosts", to=one, help=f"host:slots,..., also user@host:slots and [v6]:slots (default: {default})")
    line.add("-hostfile", "--hostfile", to=one, help="a file with lines `host slots=N`")


def add_interfaces(line: CommandLine, to: Any, *names: str, **details: Any) -> None:
    """Adds one or more spellings of the option for network interfaces, which `interfaces_of` reads."""
    help = "for connections between hosts: an interface's name, its address, or a network (CIDR); or a list with commas"
    line.add(*names, to=to, dest="nics", action="append", **{"help": help, **details})


def add_ssh(line: CommandLine, to: Any) -> None:
    """Adds Horovod's options of ssh."""
    line.add("-p", "--ssh-port", to=to, type=int, help="the port of ssh on the hosts")
    line.add("-i", "--ssh-identity-file", to=to, help="the file with the key for ssh")


def add_ssh_program(line: CommandLine, to: Any) -> None:
    """Adds this project's options of ssh."""
    line.add("--ssh-options", to=to, help="further options of ssh, as one word: '-o LogLevel=ERROR'")
    line.add(
        "--ssh-command", to=to,
        help=f"a program in place of ssh; like ssh it gets a host, and a command for a shell ({shells.VARIABLE})",
    )  # fmt: skip


def add_restarts(line: CommandLine, to: Any = None) -> None:
    """Adds the option for restarts, to a group of the line."""
    line.add(
        "--restarts", to=to, type=int, metavar="N", help="start the job again when a worker fails, up to N times (0)"
    )


def interfaces_of(options: Any) -> list[str]:
    """Returns the chosen interfaces for connections between hosts."""
    return [name for names in options.nics or () for name in names.split(",")]


def ssh_of(environment: Mapping[str, str], **given: Any) -> Ssh:
    """Returns the remote shell that the options and the environment ask for.

    Args:
      environment: The launcher's environment variables.
      **given: Attributes of `Ssh`; None for options that were not given.

    Raises:
      LaunchError: a value is not valid.
    """
    said = {name: value for name, value in given.items() if value is not None}
    if environment.get(shells.VARIABLE):
        said.setdefault("program", environment[shells.VARIABLE])
    shell = Ssh(**said)
    shell.validate()
    return shell


def listed(hosts: str | None, hostfile: str | None, slots: int | None = None) -> list[Host] | None:
    """Returns the hosts that the options list; None without such an option.

    Args:
      hosts: host:slots,...
      hostfile: The name of a file.
      slots: The slots of hosts without a number; None: each host needs a number.

    Raises:
      LaunchError: the list is not valid.
    """
    if hosts is not None:
        return parse_hosts(hosts, slots)
    return None if hostfile is None else read_hostfile(hostfile, slots)


def hosts_asked_for(
    options: Any, workers: int | None, gpus: Callable[[], int], environment: Mapping[str, str]
) -> tuple[list[Host], RemoteShell] | None:
    """Returns the hosts from options or from an allocation of Slurm's, and a shell to reach them; None: this machine.

    Args:
      options: The parsed options.
      workers: The number of workers of hosts without a number of their own (`-n`).
      gpus: Returns the number of GPUs that are visible here. It is the default number of workers of each host, as hosts
        are taken to be alike.
      environment: The launcher's environment variables.

    Raises:
      LaunchError: the hosts are not valid.
    """
    shell: RemoteShell = ssh_of(
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


def _listed_or_counted(options: Any, workers: int | None, gpus: Callable[[], int]) -> list[Host] | None:
    """Returns the hosts of a list, with or without numbers of workers."""
    try:
        found = listed(options.hosts, options.hostfile)
    except LaunchError:
        return listed(options.hosts, options.hostfile, workers or gpus() or 1)
    if workers is not None:
        raise LaunchError(f"-n {workers} applies to hosts without a number of workers, but all hosts have one")
    return found
