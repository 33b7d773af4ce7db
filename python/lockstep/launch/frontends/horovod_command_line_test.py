import json

import pytest

from lockstep.launch.frontends.horovod_command_line import command_line, request_of
from lockstep.launch.frontends.horovod_elastic import ElasticOptions
from lockstep.launch.frontends.horovod_request import Request

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def _request(words: str) -> Request:
    options, command = command_line().parse([*words.split(), "prog"])
    assert command == ["prog"]
    return request_of(options, json.loads)[0]


# Promise (horovod.md): options are exported as Horovod's variables, and values out of range are refused.
@pytest.mark.parametrize(
    ("words", "attributes"),
    [
        ("-np 2", {"num_proc": 2, "hosts": None, "hostfile": None, "controller": "", "verbose": False}),
        ("--num-proc 3", {"num_proc": 3}),
        ("-np2", {"num_proc": 2}),
        ("-n 2", {"num_proc": 2}),
        ("-n2", {"num_proc": 2}),
        ("-np 2 -H localhost:2", {"hosts": "localhost:2"}),
        ("--hosts=a:1,b:1", {"hosts": "a:1,b:1"}),
        ("-hostfile h", {"hostfile": "h"}),
        ("--hostfile h", {"hostfile": "h"}),
        ("--network-interfaces eth0,eth1", {"network_interfaces": ["eth0", "eth1"]}),
        ("--network-interface eth0 --network-interface lo", {"network_interfaces": ["eth0", "lo"]}),
        ("--nics 10.0.0.0/8", {"network_interfaces": ["10.0.0.0/8"]}),
        ("-p 2222 -i key --ssh-options=-4", {"ssh_port": 2222, "ssh_identity_file": "key", "ssh_options": "-4"}),
        ("--ssh-command netns --restarts 2", {"ssh_command": "netns", "restarts": 2}),
        ("-p 12345 -i key", {}),
        ("--ssh-port 12345 --ssh-identity-file key --disable-cache", {}),
        ("--start-timeout 100", {"start_timeout": 100}),
        ("--output-filename out --verbose", {"output_filename": "out", "verbose": True}),
        ("-prefix-timestamp", {"timestamps": True}),
        ("--prefix-output-with-timestamp", {"timestamps": True}),
        ("--gloo", {"controller": "gloo"}),
        ("--mpi", {"controller": "mpi"}),
        ("--jsrun", {"controller": "jsrun"}),
        ("--mpi-args=--x --binding-args=--y", {}),
        ("--tcp --cycle-time-ms 1", {"settings": {"tcp": True, "params.cycle_time_ms": 1.0}}),
    ],
)
def test_options_say_what_job_is_wanted(words, attributes):
    request = _request(words)
    assert {name: getattr(request, name) for name in attributes} == attributes
    assert request.elastic == ElasticOptions()


@pytest.mark.parametrize(
    ("words", "attributes"),
    [
        ("--min-np 2", {"min_np": 2}),
        ("--min-num-proc 2 --elastic-timeout 60", {"min_np": 2, "elastic_timeout": 60}),
        ("--max-np 2 --reset-limit 0", {"max_np": 2, "reset_limit": 0}),
        ("--max-num-proc 2 --slots 3", {"max_np": 2, "slots": 3}),
        ("--host-discovery-script ./h.sh --slots-per-host 3", {"host_discovery_script": "./h.sh", "slots": 3}),
        ("--max-np 2 --blacklist-cooldown-range 60 300", {"max_np": 2, "cooldown_range": [60, 300]}),
    ],
)
def test_options_say_what_elastic_job_is_wanted(words, attributes):
    assert _request("-np 2 " + words).elastic == ElasticOptions(**attributes)


@pytest.mark.parametrize("words", ["-H a:1 -hostfile h", "--gloo --mpi"])
def test_options_that_exclude_each_other_are_refused(words, capsys):
    with pytest.raises(SystemExit) as end:
        _request(words)
    assert end.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err


# Promise (horovod.md): a configuration file says the same as options, and the command line takes precedence.
def test_the_command_line_comes_before_the_configuration_file(tmp_path):
    path = tmp_path / "config"
    path.write_text('{"controller": "MPI", "params": {"fusion_threshold_mb": 10, "cycle_time_ms": 10, "x": 1}}')
    words = f"-np 2 --gloo --fusion-threshold-mb 256 --config-file {path} --cycle-time-ms 20 prog".split()
    request, unknown = request_of(command_line().parse(words)[0], json.loads)
    assert request.settings == {"params.fusion_threshold_mb": 256, "params.cycle_time_ms": 20.0}
    assert (request.controller, unknown) == ("gloo", ["params.x"])
    assert _request(f"-np 2 --config-file {path}").controller == "mpi"


# Promise (horovod.md): the help and the prefixes of lines are Horovod's.
def test_the_help_has_horovods_headings_names_and_values(capsys):
    with pytest.raises(SystemExit):
        command_line().parse(["--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: horovodrun [-h] [-v] ")
    headings = [
        line.removesuffix(":") for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")
    ]
    assert headings == [
        *("positional arguments", "options", "SSH arguments", "tuneable parameter arguments", "autotune arguments"),
        *("elastic arguments", "timeline arguments", "stall check arguments", "library arguments"),
        *("logging arguments", "host arguments", "controller arguments", "Lockstep's own arguments"),
    ]
    wanted = (
        *("-np NUM_PROC, --num-proc NUM_PROC", "-cb, --check-build", "--start-timeout START_TIMEOUT"),
        *("--network-interfaces NICS", "-p SSH_PORT, --ssh-port SSH_PORT", "--cycle-time-ms CYCLE_TIME_MS"),
        *("--min-np MIN_NUM_PROC, --min-num-proc MIN_NUM_PROC", "--no-stall-check ", "--log-without-timestamp"),
        *("--blacklist-cooldown-range COOLDOWN_RANGE COOLDOWN_RANGE", "--slots-per-host SLOTS"),
        *("-hostfile HOSTFILE, --hostfile HOSTFILE", "--log-level {TRACE,DEBUG,INFO,WARNING,ERROR,FATAL}"),
    )
    assert [option for option in wanted if f"\n  {option}" not in shown] == []
    hidden = ("--no-autotune", "--stall-check ", "--log-with-timestamp", "--log-hide-timestamp")
    assert [option for option in hidden if f" {option}" in shown] == []


def test_the_help_lists_what_horovod_documents(capsys):
    with pytest.raises(SystemExit):
        command_line().parse(["--help"])
    shown = capsys.readouterr().out
    documented = (
        *("-np", "-H", "-hostfile", "--network-interfaces", "-p", "-i", "--start-timeout", "--output-filename"),
        *("--verbose", "--check-build", "--version", "--disable-cache", "--config-file", "--fusion-threshold-mb"),
        *("--cycle-time-ms", "--cache-capacity", "--hierarchical-allreduce", "--autotune", "--timeline-filename"),
        *("--timeline-mark-cycles", "--no-stall-check", "--log-level", "--gloo", "--mpi", "--jsrun", "--min-np"),
    )
    assert [name for name in documented if name not in shown] == []
