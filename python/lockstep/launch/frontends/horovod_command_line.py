"""The command line of `horovodrun`, and the request that it makes."""

from typing import Any

from lockstep.launch.cli.arguments import CommandLine
from lockstep.launch.cli.host_options import (
    add_interfaces,
    add_lists,
    add_restarts,
    add_ssh,
    add_ssh_program,
    interfaces_of,
)
from lockstep.launch.cli.main import add_tf1
from lockstep.launch.cli.output_options import add_shown_ranks
from lockstep.launch.frontends.horovod_elastic import OPTIONS, TIMEOUT_VARIABLE, ElasticOptions
from lockstep.launch.frontends.horovod_request import START_TIMEOUT, Request
from lockstep.launch.frontends.horovod_settings import ReadYaml, add_settings, given_settings, read_config

# The version of Horovod whose API programs find.
API_VERSION = "0.28.1"
PROGRAM = "horovodrun"
_SSH_OPTIONS = ("ssh_port", "ssh_identity_file", "ssh_options", "ssh_command")
_DESCRIPTION = """\
Lockstep's version of Horovod's launcher: starts the processes of a job, on this machine or on several hosts. Each runs
the command. When one fails, all are ended, and the launcher returns the failed process's exit code.
"""
# The headings of Horovod's help in their order, and this project's.
_OURS = "Lockstep's own arguments"
_GROUPS = (
    *("SSH arguments", "tuneable parameter arguments", "autotune arguments", "elastic arguments"),
    *("timeline arguments", "stall check arguments", "library arguments", "logging arguments", "host arguments"),
    *("controller arguments", _OURS),
)
# For each attribute of `ElasticOptions`: its name, other spellings, Horovod's name of its value, and its help.
_ELASTIC = (
    ("min_np", ("--min-num-proc",), "MIN_NUM_PROC", "with fewer processes the job waits for hosts (default: -np)"),
    (
        "max_np", ("--max-num-proc",), "MAX_NUM_PROC",
        "the largest number of processes (default: one for each slot)",
    ),
    ("slots", (), "SLOTS", "the slots of hosts for which the host discovery script prints no number"),
    (
        "elastic_timeout", (), "ELASTIC_TIMEOUT",
        f"seconds for which the job waits for hosts and processes; also {TIMEOUT_VARIABLE} (default: 600)",
    ),
    ("reset_limit", (), "RESET_LIMIT", "how often the job may be reset (default: without limit)"),
    (
        "cooldown_range", (), "COOLDOWN_RANGE",
        "the seconds for which a host gets no new processes after one has failed there: first the initial time, which "
        "doubles each time, then the longest one (default: for good)",
    ),
)  # fmt: skip


def command_line() -> CommandLine:
    """Returns the parser. Its help has Horovod's order, names and headings, and this project's options at the end."""
    line = CommandLine(PROGRAM, _DESCRIPTION, lists_options=True)
    line.add("-v", "--version", action="version", version=API_VERSION, help="print the version of Horovod's API")
    line.add("-np", "--num-proc", type=int, help="number of processes; for an elastic job, at its start")
    line.add("-cb", "--check-build", action="store_true", help="print which parts this installation has")
    line.add("--disable-cache", action="store_true", help="nothing is cached here: checks run at every start")
    line.add(
        "--start-timeout",
        type=int,
        help=f"seconds until all processes must be there; also {START_TIMEOUT} (default: 60)",
    )
    add_interfaces(line, None, "--network-interfaces")
    add_interfaces(line, None, "--network-interface", help="the same; may be given several times")
    line.add(
        "--output-filename",
        help="a folder that also gets the processes' output, in rank.N/stdout and stderr; N is padded with zeros",
    )
    line.add("--verbose", action="store_true", help="show what is started")
    line.add("--config-file", help="a YAML file with settings; options of the command line override it")
    groups = {title: line.group(title) for title in _GROUPS}
    add_ssh(line, groups["SSH arguments"])
    add_settings(line, groups)
    for name, others, shown, meaning in _ELASTIC:
        details = {"dest": name, "type": int, "metavar": shown, "help": meaning}
        details |= {"nargs": 2} if name == "cooldown_range" else {}
        line.add(OPTIONS[name], *others, to=groups["elastic arguments"], **details)
    for name in ("--mpi-args", "--binding-args"):
        line.add(name, to=groups["library arguments"], help="for mpirun, which is not used")
    line.add(
        "-prefix-timestamp", "--prefix-output-with-timestamp", to=groups["logging arguments"], dest="timestamps",
        action="store_true", help="each line of output begins with date and time",
    )  # fmt: skip
    one = groups["host arguments"].add_mutually_exclusive_group()
    add_lists(line, one, default="localhost, with a slot for each process")
    line.add(
        OPTIONS["host_discovery_script"], to=one,
        help="for elastic jobs: a program that prints host:slots, or host with --slots-per-host; runs every second",
    )  # fmt: skip
    _add_controllers(line, groups["controller arguments"].add_mutually_exclusive_group())
    _add_ours(line, groups[_OURS])
    return line


def _add_controllers(line: CommandLine, one: Any) -> None:
    for name, meaning in (
        ("gloo", f"processes are started by {PROGRAM} itself, as always"),
        ("mpi", "refused: mpirun is not used"),
        ("jsrun", "refused: jsrun is not used"),
    ):
        line.add(f"--{name}", to=one, dest="controller", action="store_const", const=name, help=meaning)


def _add_ours(line: CommandLine, group: Any) -> None:
    """Adds the options that Horovod's launcher does not have."""
    line.add("-n", to=group, type=int, dest="num_proc", help="the same as -np")
    add_restarts(line, group)
    add_tf1(line, group)
    add_shown_ranks(line, group)
    add_ssh_program(line, group)
    add_interfaces(line, group, "--nics", "--interface", help="the same as --network-interface")
    line.add("--slots", to=group, type=int, dest="slots", help="the same as --slots-per-host")


def request_of(options: Any, read_yaml: ReadYaml) -> tuple[Request, list[str]]:
    """Returns the request of a command line.

    Args:
      options: The options that `command_line()` parsed.
      read_yaml: Reads the text of a configuration file; raises ValueError for one that is no YAML.

    Returns:
      (the request, keys of the configuration file that are not known).

    Raises:
      LaunchError: the configuration file cannot be read, or a setting is wrong.
    """
    settings: dict[str, Any] = {}
    controller = ""
    unknown: list[str] = []
    if options.config_file is not None:
        settings, controller, unknown = read_config(options.config_file, read_yaml)
    settings.update(given_settings(options))  # The command line overrides the configuration file.
    request = Request(
        num_proc=options.num_proc,
        hosts=options.hosts,
        hostfile=options.hostfile,
        network_interfaces=interfaces_of(options),
        start_timeout=options.start_timeout,
        output_filename=options.output_filename,
        verbose=options.verbose,
        timestamps=options.timestamps,
        controller=options.controller or controller,
        settings=settings,
        elastic=ElasticOptions(**{name: getattr(options, name) for name in OPTIONS}),
        **{name: getattr(options, name) for name in _SSH_OPTIONS},
        restarts=options.restarts,
    )
    return request, unknown
