"""What the launcher and its workers read of others: each input is understood, or refused by an error that says so."""

import json

import pytest

from lockstep._src.cluster import Cluster
from lockstep.launch import elastic_hosts, hosts
from lockstep.launch.elastic_wire import Channel, WireError
from lockstep.launch.errors import LaunchError
from lockstep.launch.tasks import tasks_of
from lockstep.testing.mutations import feed

INPUTS = 1000

_CLUSTERS = [
    json.dumps({"cluster": {"chief": ["a:1"], "worker": ["a:2", "b:1"]}, "task": {"type": "worker", "index": 1}}),
    json.dumps({"cluster": {"worker": {"0": "[::1]:1", "1": "[::1]:2"}}, "task": {"type": "worker", "index": "0"}}),
    json.dumps({"cluster": {"chief": ["a:1"], "ps": ["b:2"]}, "task": {"type": "ps", "index": 0}}),
    json.dumps({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}, "environment": "cloud"}),
    "{}",
]
TF_CONFIGS = [text.encode() for text in _CLUSTERS]


def text_of(data: bytes) -> str:
    """As the system hands an environment variable to Python: it ends at a zero, and any bytes become text."""
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def named(name, reads, *errors):
    """`reads`, whose errors have to begin with what they are about."""

    def check(data):
        try:
            return reads(data)
        except errors as error:
            assert name in str(error), str(error)
            raise

    return check


def test_tf_config_of_a_launcher():
    def reads(data):
        tasks = tasks_of(text_of(data))
        assert 0 <= tasks.index < len(tasks.addresses)
        return tasks.hosts, tasks.neighbours, tasks.ports

    assert feed("TF_CONFIG (launcher)", named("TF_CONFIG", reads, LaunchError), TF_CONFIGS, LaunchError, INPUTS) > 10


def test_tf_config_of_a_worker():
    def reads(data):
        cluster = Cluster.from_environment({"TF_CONFIG": text_of(data)})
        assert 0 <= cluster.rank < cluster.world_size
        assert 0 <= cluster.local_rank < cluster.local_world_size

    assert feed("TF_CONFIG (worker)", named("TF_CONFIG", reads, ValueError), TF_CONFIGS, ValueError, INPUTS) > 10


def test_variables_of_a_launcher():
    names = ("LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE", "LOCKSTEP_LOCAL_RANK", "LOCKSTEP_LOCAL_WORLD_SIZE")

    def reads(data):
        environ = dict(zip(names, text_of(data).split("|"), strict=False))
        cluster = Cluster.from_environment(environ)
        assert 0 <= cluster.rank < cluster.world_size

    feed(
        "launcher's variables",
        named("LOCKSTEP_", reads, ValueError),
        [b"0|2|0|2", b"1|2", b"3|4|1|2"],
        ValueError,
        INPUTS,
    )


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
