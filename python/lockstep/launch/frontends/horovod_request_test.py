import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.frontends.horovod_elastic import ElasticOptions
from lockstep.launch.frontends.horovod_request import Request
from lockstep.launch.placement.hosts import Host

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


# Promise (horovod.md): a request that cannot be met is one line.
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "-np is missing: wanted the number of processes"),
        ({"num_proc": 0}, "-np 0: wanted 1 or more processes"),
        ({"num_proc": "2"}, "-np: got '2', wanted a whole number"),
        ({"num_proc": True}, "-np: got True, wanted a whole number"),
        ({"num_proc": 1, "start_timeout": 0.5}, "start timeout: got 0.5, wanted a whole number"),
        ({"num_proc": 1, "hosts": "a:1", "hostfile": "h"}, "got hosts and a hostfile, wanted one of them"),
        ({"num_proc": 1, "controller": "mpi"}, "controller mpi: horovodrun starts processes itself"),
        ({"num_proc": 1, "controller": "jsrun"}, "controller jsrun: "),
        ({"num_proc": 1, "controller": "nccl"}, "controller nccl: "),
        ({"num_proc": 1, "start_timeout": 0}, "start timeout: got 0, wanted 1 or more seconds"),
        ({"num_proc": 1, "restarts": -1}, "--restarts -1: wanted 0 or more"),
        ({"num_proc": 1, "restarts": 1, "elastic": ElasticOptions(1)}, "--restarts is for jobs that are not elastic"),
    ],
)
def test_what_cannot_be_is_refused(attributes, message):
    with pytest.raises(LaunchError) as refused:
        Request(**attributes).validate()
    assert str(refused.value).startswith(message)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_without_hosts_this_machine_has_a_slot_for_each_process():
    request = Request(num_proc=3, controller="gloo", network_interfaces=["lo"], start_timeout=1)
    request.validate()
    assert request.job_hosts({}).hosts == [Host("localhost", 3)]
    assert request.job_hosts({}).is_here


@pytest.mark.parametrize(
    ("given", "name"), [({"hosts": "localhost:2,127.0.0.1:4"}, "localhost"), ({"hostfile": "hosts"}, "127.0.0.1")]
)
def test_hosts_are_given_or_read(tmp_path, monkeypatch, given, name):
    (tmp_path / "hosts").write_text("127.0.0.1 slots=4\n")
    monkeypatch.chdir(tmp_path)
    assert Request(num_proc=3, **given).job_hosts({}).hosts == [Host(name, 3)]


def test_hosts_elsewhere_are_reached_as_options_and_the_environment_say(tmp_path):
    (tmp_path / "key").touch()
    request = Request(
        num_proc=2, hosts="me@a:1,b:1", ssh_port=2222, ssh_identity_file=str(tmp_path / "key"), ssh_options="-o A=b"
    )
    job_hosts = request.job_hosts({"LOCKSTEP_SSH": "in-place -x"})
    assert (job_hosts.hosts, job_hosts.is_here) == ([Host("a", 1, "me"), Host("b", 1)], False)
    assert job_hosts.shell.command(job_hosts.hosts[0], ["go", "a b"]) == [
        *("in-place", "-x", "-p", "2222", "-i", str(tmp_path / "key"), "-o", "A=b", "me@a", "exec go 'a b'")
    ]
    request.ssh_command = "ssh"
    words = request.job_hosts({"LOCKSTEP_SSH": "other"}).shell.command(job_hosts.hosts[1], ["go"])
    assert words[:2] == ["ssh", "-T"] and words[-2:] == ["b", "exec go"]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"ssh_port": 0}, "ssh port: got 0, wanted 1 to 65535"),
        ({"ssh_port": "22"}, "ssh port: got '22', wanted 1 to 65535"),
        ({"ssh_identity_file": "/nowhere"}, "ssh identity file /nowhere does not exist"),
        ({"ssh_command": ""}, "ssh command: got '', wanted one like ssh"),
        ({"ssh_options": "'"}, 'ssh options "\'": No closing quotation'),
        ({"network_interfaces": ["lo", "no0"]}, "network interface 'no0' does not exist or is down; "),
    ],
)
def test_what_is_said_of_the_way_to_hosts_is_checked(attributes, message):
    with pytest.raises(LaunchError) as refused:
        Request(num_proc=1, **attributes).job_hosts({})
    assert str(refused.value).startswith(message)


def test_processes_are_told_of_settings_and_the_engine_of_its_own():
    request = Request(
        num_proc=2,
        start_timeout=17,
        network_interfaces=["lo", "eth0"],
        settings={"params.cache_capacity": 7, "stall_check.shutdown_time_seconds": 90},
    )
    assert request.variables({"HOROVOD_START_TIMEOUT": "99"}) == {
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90",
        "LOCKSTEP_RENDEZVOUS_TIMEOUT": "17",
        "LOCKSTEP_STALL_TIMEOUT": "90",
        "HOROVOD_GLOO_IFACE": "lo",
        "NCCL_SOCKET_IFNAME": "lo,eth0",
        "LOCKSTEP_INTERFACE": "lo",
    }
    assert Request(num_proc=2).variables({}) == {}


# Promise (horovod.md): stall times come from the environment, and networks name interfaces.
@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ([], {}),
        (["eth1", "10.0.0.7", "eth2"], {"HOROVOD_GLOO_IFACE": "eth1", "NCCL_SOCKET_IFNAME": "eth1,eth2"}),
    ],
)
def test_networks_are_exported_to_the_engine_alone(more, wanted):
    """Programs that read Horovod's and NCCL's variables only understand names of interfaces."""
    variables = Request(network_interfaces=["10.0.0.0/8", *more]).variables({})
    assert variables == {"LOCKSTEP_INTERFACE": "10.0.0.0/8", **wanted}


# Promise (horovod.md): stall times come from the environment, and networks name interfaces.
@pytest.mark.parametrize(
    ("settings", "environment", "wanted"),
    [
        ({}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"}, "90"),
        ({}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90.5"}, "90.5"),
        # As in Horovod, it counts only if it is longer than the warning's time, from any source.
        ({}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "30"}, None),
        ({}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "30", "HOROVOD_STALL_CHECK_TIME_SECONDS": "10"}, "30"),
        ({"stall_check.warning_time_seconds": 10}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "30"}, "30"),
        ({"stall_check.shutdown_time_seconds": 90}, {"HOROVOD_STALL_CHECK_TIME_SECONDS": "120"}, None),
        # Options override variables.
        ({"stall_check.shutdown_time_seconds": 90}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "240"}, "90"),
        ({"stall_check.shutdown_time_seconds": 0}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "240"}, None),
        ({}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90", "HOROVOD_STALL_CHECK_DISABLE": "1"}, None),
        (
            {"stall_check.enabled": True},
            {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90", "HOROVOD_STALL_CHECK_DISABLE": "1"},
            "90",
        ),
        ({"stall_check.enabled": False}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"}, None),
        # The engine's own variable overrides it.
        ({}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90", "LOCKSTEP_STALL_TIMEOUT": "7"}, None),
        ({"stall_check.shutdown_time_seconds": 90}, {"LOCKSTEP_STALL_TIMEOUT": "7"}, "90"),
        ({}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": ""}, None),
    ],
)
def test_times_of_stalls_may_be_said_in_the_environment(settings, environment, wanted):
    assert Request(settings=settings).variables(environment).get("LOCKSTEP_STALL_TIMEOUT") == wanted


@pytest.mark.parametrize(
    ("variable", "wanted"),
    [
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "seconds, 0 or more"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "seconds, 0 or more"),
        ("HOROVOD_STALL_CHECK_DISABLE", "0 or 1"),
    ],
)
@pytest.mark.parametrize("value", ["-1", "soon", "nan", "inf"])
def test_a_time_of_a_stall_that_is_none_is_refused(variable, wanted, value):
    with pytest.raises(LaunchError, match=f"{variable}={value!r}: wanted {wanted}"):
        Request().variables({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90", variable: value})


def test_the_start_may_be_limited_in_the_environment():
    assert Request().variables({"HOROVOD_START_TIMEOUT": "99"}) == {"LOCKSTEP_RENDEZVOUS_TIMEOUT": "99"}


@pytest.mark.parametrize("value", ["", "0", "-1", "soon"])
def test_a_time_of_the_start_that_is_none_is_refused(value):
    with pytest.raises(LaunchError, match=f"HOROVOD_START_TIMEOUT={value!r}: wanted seconds, 1 or more"):
        Request().variables({"HOROVOD_START_TIMEOUT": value})
