"""What the launcher reads of others: each input is understood, or refused by an error that says so."""

import json

import pytest

from lockstep.launch import elastic_hosts, hosts
from lockstep.launch.elastic_wire import Channel, WireError
from lockstep.launch.errors import LaunchError
from lockstep.launch.tasks import tasks_of
from lockstep.testing.mutations import TF_CONFIGS, feed, named, text_of

INPUTS = 1000


def test_tf_config_of_a_launcher():
    def reads(data):
        tasks = tasks_of(text_of(data))
        assert 0 <= tasks.index < len(tasks.addresses)
        return tasks.hosts, tasks.by_host, tasks.ports

    assert feed("TF_CONFIG (launcher)", named("TF_CONFIG", reads, LaunchError), TF_CONFIGS, LaunchError, INPUTS) > 10


def test_hosts():
    def reads(data):
        found = hosts.parse_hosts(text_of(data))
        assert all(host.slots >= 1 and host.name for host in found)

    seeds = [b"localhost:2", b"a-1.b:2,127.0.0.1:3,[::1]:1", b"h:1, h:2"]
    assert feed("--hosts", named("hosts", reads, LaunchError), seeds, LaunchError, INPUTS) > 10


def test_hostfile(tmp_path):
    path = tmp_path / "hosts"

    def reads(data):
        path.write_bytes(data)
        assert all(host.slots >= 1 and host.name for host in hosts.read_hostfile(str(path)))

    seeds = [b"localhost slots=2\n# ours\n\n127.0.0.1  slots = 3\n", b"a slots=1\n"]
    assert feed("hostfile", named(str(path), reads, LaunchError), seeds, LaunchError, 300) > 10


@pytest.mark.parametrize("slots", [None, 2])
def test_output_of_a_host_discovery_script(slots, monkeypatch):
    # Nobody is asked who these hosts are.
    monkeypatch.setattr(elastic_hosts, "is_this_machine", lambda name: True)

    def reads(data):
        return elastic_hosts.parse_discovered(data.decode("utf-8", "replace"), slots, "./script")

    seeds = [b"localhost:2\n127.0.0.1:1\n", b"a:1\na:1\n"] + ([b"a\nb:3\n"] if slots else [])
    feed("host discovery", named("./script", reads, LaunchError), seeds, LaunchError, INPUTS)


def test_names_of_hosts_are_looked_up_without_a_crash(monkeypatch):
    def no_network(name, *args, **kwargs):
        name.encode("idna")  # as the system's does, before it asks anybody
        raise OSError("no network here")

    monkeypatch.setattr(hosts.socket, "getaddrinfo", no_network)
    feed("host's name", lambda data: hosts.is_this_machine(text_of(data)), [b"localhost"], LaunchError, 1000)


@pytest.mark.parametrize("is_known", [False, True])
def test_conversation_of_an_elastic_worker(is_known):
    """A stranger's bytes, and those of a worker that knows the secret but makes no sense."""

    def reads(data):
        launcher, worker = Channel("secret", True), Channel("secret", False)
        worker.feed(launcher.outgoing)
        launcher.feed(worker.outgoing)
        if is_known:
            data = worker._mac(False, 0, data) + b" " + data + b"\n"
        assert all(isinstance(message, dict) for message in launcher.feed(data))

    message = json.dumps({"is": "ready", "worker": "localhost:0", "has_state": True}).encode()
    feed("elastic wire", reads, [message] if is_known else [b""], WireError, 1000)


def test_a_line_without_end_is_not_kept():
    channel = Channel("secret", True)
    with pytest.raises(WireError, match="a line without end"):
        for _ in range(1000):
            channel.feed(b"x" * 1024)
    assert len(channel._rest) < 100 << 10
