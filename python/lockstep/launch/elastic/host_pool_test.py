# Promise of this file (horovod_elastic.md): hosts cool down after failures, and output of discovery scripts is checked.

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.elastic.host_pool import Cooldown, HostPool, parse_discovered, script_command

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def test_a_host_with_failures_is_left_alone_for_longer_each_time():
    cooldown = Cooldown(10, 100)
    assert [cooldown.seconds(n, draw=lambda: 0.0) for n in (1, 2, 3, 4, 5, 900)] == [10, 20, 40, 80, 100, 100]
    assert cooldown.seconds(1, draw=lambda: 0.5) == 15
    hosts = HostPool(Cooldown(10, 10))
    hosts.found({"a": 1, "b": 2})
    assert hosts.failed("a", now=5.0) == 10
    assert (hosts.takes_new("a", 14.9), hosts.takes_new("a", 15.0), hosts.takes_new("b", 5.0)) == (False, True, True)
    assert hosts.next_return(6.0) == 15


def test_without_a_cooldown_it_is_for_good():
    hosts = HostPool()
    hosts.found({"a": 1})
    assert hosts.failed("a", now=0.0) is None
    assert not hosts.takes_new("a", 1e9) and hosts.next_return(1.0) is None


def test_the_oldest_hosts_come_first():
    hosts = HostPool()
    assert hosts.found({"b": 1, "c": 2})
    assert hosts.found({"a": 1, "c": 2, "b": 1})
    assert list(hosts.slots()) == ["b", "c", "a"]
    assert not hosts.found({"c": 2, "b": 1, "a": 1})


@pytest.mark.parametrize(
    ("text", "slots", "wanted"),
    [
        ("localhost:2\n\n 127.0.0.1:1 \n", None, {"localhost": 2, "127.0.0.1": 1}),
        ("localhost\n127.0.0.1:1", 3, {"localhost": 3, "127.0.0.1": 1}),
        ("", None, {}),
        ("me@node-1:2\nnode-1:1\n[fd00::1]:3\nme@node-1:1", None, {"me@node-1": 3, "node-1": 1, "fd00::1": 3}),
    ],
)
def test_what_a_script_prints(text, slots, wanted):
    assert parse_discovered(text, slots, "s") == wanted


@pytest.mark.parametrize(
    ("name", "machine"),
    [("localhost", ""), ("127.0.0.1", ""), ("192.0.2.1", "192.0.2.1"), ("me@127.0.0.1", "me@127.0.0.1")],
)
def test_names_of_this_machine_are_one_machine(name, machine):
    assert HostPool().machine(name) == machine


def test_workers_that_fail_together_are_one_failure():
    hosts = HostPool(Cooldown(10, 1000))
    hosts.found({"a": 2})
    first = hosts.failed("a", 1.0)
    assert hosts.failed("a", 1.0) == pytest.approx(first) and 10 <= first <= 20
    assert 20 <= hosts.failed("a", 2.0) <= 30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("localhost", "s printed 'localhost', wanted host:slots, or only host with --slots-per-host"),
        ("localhost:x", "s printed 'localhost:x', wanted host:slots"),
        ("a:2,b:2", "s printed 'a:2,b:2', wanted host:slots"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused(text, message):
    with pytest.raises(LaunchError) as error:
        parse_discovered(text, None, "s")
    assert str(error.value).startswith(message)


def test_a_script_is_a_file_or_a_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my hosts.sh").touch()
    assert script_command("my hosts.sh") == [str(tmp_path / "my hosts.sh")]
    assert script_command("python -m hosts 'a b'") == ["python", "-m", "hosts", "a b"]
