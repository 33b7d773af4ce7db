import pytest

from lockstep.launch.errors import LaunchError
from lockstep.launch.horovod_request import Request
from lockstep.launch.hosts import Host

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "-np is missing: wanted the number of processes"),
        ({"num_proc": 0}, "-np 0: wanted 1 or more processes"),
        ({"num_proc": 1, "hosts": "a:1", "hostfile": "h"}, "got hosts and a hostfile, wanted one of them"),
        ({"num_proc": 1, "controller": "mpi"}, "controller mpi: horovodrun starts processes itself"),
        ({"num_proc": 1, "controller": "jsrun"}, "controller jsrun: "),
        ({"num_proc": 1, "controller": "nccl"}, "controller nccl: "),
        ({"num_proc": 1, "start_timeout": 0}, "start timeout: got 0, wanted 1 or more seconds"),
        ({"num_proc": 1, "network_interfaces": ["lo", "no0"]}, "network interface 'no0' is not there; this machine"),
        ({"num_proc": 1, "elastic": {"a": 0, "b": None, "c": "x"}}, "a, c: this version runs no elastic jobs"),
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
    assert request.places() == [Host("localhost", 3)]


def test_hosts_are_given_or_read(tmp_path):
    (tmp_path / "hosts").write_text("127.0.0.1 slots=4\n")
    assert Request(num_proc=3, hosts="localhost:2,127.0.0.1:4").places() == [Host("localhost", 2), Host("127.0.0.1", 1)]
    assert Request(num_proc=3, hostfile=str(tmp_path / "hosts")).places() == [Host("127.0.0.1", 3)]


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
    }
    assert Request(num_proc=2).variables({}) == {}


def test_the_start_may_be_limited_in_the_environment():
    assert Request().variables({"HOROVOD_START_TIMEOUT": "99"}) == {"LOCKSTEP_RENDEZVOUS_TIMEOUT": "99"}
    for value in ("", "0", "-1", "soon"):
        with pytest.raises(LaunchError, match=f"HOROVOD_START_TIMEOUT={value!r}: wanted seconds, 1 or more"):
            Request().variables({"HOROVOD_START_TIMEOUT": value})
