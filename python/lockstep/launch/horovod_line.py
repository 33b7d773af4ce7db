"""The command line of `horovodrun`, and what it asks for."""

from typing import Any

from lockstep.launch import cli
from lockstep.launch.arguments import CommandLine
from lockstep.launch.elastic_request import OPTIONS, TIMEOUT_VARIABLE, Elastic
from lockstep.launch.horovod_request import START_TIMEOUT, Request
from lockstep.launch.horovod_settings import ReadYaml, add_settings, given_settings, read_config
from lockstep.launch.host_options import add_hosts, add_restarts, interfaces_of

# The version of Horovod whose API programs find.
API_VERSION = "0.28.1"
PROGRAM = "horovodrun"
_OF_SSH = ("ssh_port", "ssh_identity_file", "ssh_options", "ssh_command")
_DESCRIPTION = """\
Starts the processes of a job, on this machine or on several hosts, each running the command, and ends them together:
when one fails, all are ended, and its exit code is returned. Horovod's options; what they mean here is said with each.
"""
# Of `Elastic`: what it is called there, other spellings, its type, and what it means.
_ELASTIC = (
    ("min_np", ("--min-num-proc",), int, "with fewer processes the job waits for hosts; -np"),
    ("max_np", ("--max-num-proc",), int, "more processes are not started; -np"),
    ("host_discovery_script", (), str, "prints lines host:slots, or host with --slots-per-host; run every second"),
    ("slots", ("--slots",), int, "of hosts for which the script says no number"),
    ("elastic_timeout", (), int, f"seconds for which the job waits; 600 ({TIMEOUT_VARIABLE})"),
    ("reset_limit", (), int, "how often the job may begin anew; any number"),
    (
        "cooldown_range", (), int,
        "for how many seconds a host gets no new processes when one failed there: at first (twice as long each time), "
        "and at most; for good",
    ),
)  # fmt: skip


def command_line() -> CommandLine:
    """Its parser."""
    line = CommandLine(PROGRAM, _DESCRIPTION)
    line.add("-v", "--version", action="version", version=API_VERSION, help="print the version of Horovod's API")
    line.add("-cb", "--check-build", action="store_true", help="print what this installation has")
    line.add("-np", "--num-proc", type=int, metavar="N", help="number of processes")
    line.add("--verbose", action="store_true", help="say what is started")
    line.add("--config-file", metavar="FILE", help="YAML with settings; options of the command line come first")
    line.add(
        "--output-filename", metavar="FOLDER",
        help="keep what processes write in FOLDER/rank.N/stdout and stderr as well, N padded with zeros",
    )  # fmt: skip
    line.add(
        "-prefix-timestamp", "--prefix-output-with-timestamp", dest="timestamps", action="store_true",
        help="begin each line of output with date and time",
    )  # fmt: skip
    line.add("--start-timeout", type=int, metavar="S", help=f"seconds until all have to be there (60; {START_TIMEOUT})")
    line.add("--disable-cache", action="store_true", help="nothing is cached here: checks run at every start")
    add_restarts(line)
    cli.add_tf1(line)
    add_hosts(line, default="localhost, with a slot for each process")
    _add_controllers(line)
    add_settings(line)
    elastic = line.group("elastic jobs", "The number of processes may change (docs/horovod_elastic.md).")
    for name, others, kind, meaning in _ELASTIC:
        values = {"nargs": 2} if name == "cooldown_range" else {}
        line.add(OPTIONS[name], *others, to=elastic, dest=name, type=kind, metavar="X", help=meaning, **values)
    return line


def _add_controllers(line: CommandLine) -> None:
    group = line.group("controllers")
    one = group.add_mutually_exclusive_group()
    for name, meaning in (
        ("gloo", f"processes are started by {PROGRAM} itself, as always"),
        ("mpi", "refused: mpirun is not used"),
        ("jsrun", "refused: jsrun is not used"),
    ):
        line.add(f"--{name}", to=one, dest="controller", action="store_const", const=name, help=meaning)
    line.add("--mpi-args", to=group, metavar="ARGS", help="for mpirun, which is not used")
    line.add("--binding-args", to=group, metavar="ARGS", help="for mpirun, which is not used")


def request_of(options: Any, read_yaml: ReadYaml) -> tuple[Request, list[str]]:
    """What a command line asks for.

    Args:
      options: As `command_line()` parsed them.
      read_yaml: Reads the text of a configuration file; raises ValueError for one that is no YAML.

    Returns:
      (the job, keys of the configuration file that mean nothing).

    Raises:
      LaunchError: the configuration file cannot be read, or a setting is wrong.
    """
    settings, controller, unknown = {}, "", []
    if options.config_file is not None:
        settings, controller, unknown = read_config(options.config_file, read_yaml)
    settings.update(given_settings(options))  # Where both say something, the command line decides.
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
        elastic=Elastic(**{name: getattr(options, name) for name in OPTIONS}),
        **{name: getattr(options, name) for name in _OF_SSH},
        restarts=options.restarts,
    )
    return request, unknown
