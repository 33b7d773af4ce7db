"""Input from others that the launcher reads: each is understood, or refused with an error."""

# Promise of this file (launching.md): damaged host files, lists and frames are one line of error.
# Promise of this file (security.md): elastic jobs refuse forged and repeated messages.

import json
import struct

import pytest

from lockstep.launch.base.elastic_wire import Channel, WireError
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.base.places import MOST_WORKERS, places
from lockstep.launch.elastic import host_pool
from lockstep.launch.placement import hosts, kubeflow, slurm
from lockstep.launch.placement.tasks import tasks_of
from lockstep.launch.remote import agent_wire
from lockstep.launch.remote.remote_host import Assignment, RemoteHost
from lockstep.launch.remote.remote_worker import RemoteWorker
from lockstep.testing.mutations import TF_CONFIGS, feed, named, text_of

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


INPUTS = 1000


def test_tf_config_of_a_launcher():
    def reads(data):
        tasks = tasks_of(text_of(data))
        assert 0 <= tasks.index < len(tasks.addresses)
        return tasks.hosts, tasks.by_host, tasks.ports

    assert feed("TF_CONFIG (launcher)", named("TF_CONFIG", reads, LaunchError), TF_CONFIGS, LaunchError, INPUTS) > 10


def test_hosts(monkeypatch):
    """The input is followed up to the place of each worker."""
    monkeypatch.setattr(hosts, "is_this_machine", lambda name: name == "localhost")  # no network

    def reads(data):
        found = hosts.parse_hosts(text_of(data))
        assert all(host.slots >= 1 and host.name for host in found)
        # No name may be an option of ssh.
        assert not [host for host in found if host.target.startswith("-")]
        size = sum(host.slots for host in found)
        filled = hosts.assign_slots(size, found)
        assert len(places([(host.name, host.slots) for host in filled])) == size <= MOST_WORKERS

    seeds = [b"localhost:2", b"a-1.b:2,127.0.0.1:3,[::1]:1", b"h:1, h:2", b"me@a:1,you@[fe80::1%eth0]:2"]
    many = b"me@127.0.0.2:999999999"
    with pytest.raises(
        LaunchError, match=f"hosts me@127.0.0.2:999999999: got 999999999 workers, wanted at most {MOST_WORKERS}"
    ):
        reads(many)
    seeds.append(many.replace(b"9" * 9, b"9999"))
    assert feed("--hosts", named("hosts", reads, LaunchError), seeds, LaunchError, INPUTS) > 10


def test_hostfile(tmp_path):
    path = tmp_path / "hosts"

    def reads(data):
        path.write_bytes(data)
        assert all(host.slots >= 1 and host.name for host in hosts.read_hostfile(str(path)))

    seeds = [b"localhost slots=2\n# ours\n\n127.0.0.1  slots = 3\n", b"a slots=1\n"]
    assert feed("hostfile", named(str(path), reads, LaunchError), seeds, LaunchError, 300) > 10


@pytest.mark.parametrize("slots", [None, 2])
def test_output_of_a_host_discovery_script(slots):
    def reads(data):
        return host_pool.parse_discovered(data.decode("utf-8", "replace"), slots, "./script")

    seeds = [b"localhost:2\n127.0.0.1:1\n", b"a:1\na:1\n"] + ([b"a\nb:3\n"] if slots else [])
    feed("host discovery", named("./script", reads, LaunchError), seeds, LaunchError, INPUTS)


def test_names_of_hosts_are_looked_up_without_a_crash(monkeypatch):
    def no_network(name, *args, **kwargs):
        name.encode("idna")  # as the system does first
        raise OSError("no network here")

    monkeypatch.setattr(hosts.socket, "getaddrinfo", no_network)
    feed("host's name", lambda data: hosts.is_this_machine(text_of(data)), [b"localhost"], LaunchError, 1000)


def test_lists_of_slurms():
    def reads(data):
        nodes = slurm.parse_nodes(text_of(data))
        assert nodes and all(nodes) and len(nodes) <= 1 << 16

    seeds = [b"node[01-03,7]", b"a,b[1-2]c[3,4]", b"n[0-99]x[0-99]"]
    assert feed("SLURM_NODELIST", reads, seeds, LaunchError, INPUTS) > 10


def test_a_step_of_slurms():
    names = (
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_STEP_NODELIST",
        "SLURM_NODEID",
        "SLURM_LOCALID",
        "SLURM_STEP_NUM_TASKS",
    )

    def reads(data):
        values = text_of(data).split(";")
        variables = dict(zip(names, values, strict=False))
        tasks = slurm.tasks_of_step({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", **variables})
        assert tasks is None or 0 <= tasks.index < len(tasks.addresses)

    many = b"999999999;a;0;0;999999999"
    with pytest.raises(LaunchError, match=f"Slurm's variables: got 999999999 workers, wanted at most {MOST_WORKERS}"):
        reads(many)
    seeds = [b"2(x3),1;n[1-4];2;1;7", b"1(x2);a,b;1;0;2", many.replace(b"9" * 9, b"9999")]
    feed("Slurm's variables", reads, seeds, LaunchError, INPUTS)


def test_variables_of_kubeflow_trainer():
    names = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NPROC_PER_NODE")

    def reads(data):
        variables = dict(zip(names, text_of(data).split(";"), strict=False))
        if kubeflow.is_asked(variables):
            tasks, workers = kubeflow.tasks_of_train_job(variables), kubeflow.workers_of_pod(variables)
            assert 0 <= tasks.index < len(tasks.addresses) and (workers is None or workers >= 0)

    seeds = [b"3;1;train-node-0-0.train;29500;2", b"1;0;a-0.a;1;auto", b"65536;9;a-0.a;1;1"]
    assert feed("Kubeflow Trainer's variables", reads, seeds, LaunchError, INPUTS) > 10


def test_words_of_an_agent():
    def reads(data):
        frames = agent_wire.Frames()
        for at in range(0, len(data), 7):
            for message, _ in frames.feed(data[at : at + 7]):
                assert isinstance(message["is"], str)

    seeds = [
        agent_wire.frame({"is": "output", "rank": 1, "of": 1}, b"text") + agent_wire.frame({"is": "alive"}),
        agent_wire.frame({"is": "ended", "rank": 3, "code": -9}),
    ]
    assert feed("agent wire", reads, seeds, agent_wire.WireError, INPUTS) > 10


def test_messages_of_an_agent_to_a_launcher(tmp_path):
    """Arbitrary messages of an agent cause only an error of the connection."""
    with open(tmp_path / "shown", "wb") as file:
        console = Console(file.fileno(), file.fileno())
        task = Assignment(["true"], {}, "/", "", False, 8.0, {}, str(tmp_path))

        def reads(data):
            host = RemoteHost(hosts.Host("a", 2), ["true"], task, console)
            host.workers = {rank: RemoteWorker("a", rank, host.say, console, None) for rank in (0, 1)}
            head = struct.pack("!II", len(data), 4)
            for message, chunk in agent_wire.Frames().feed(head + data + b"data"):
                host._take(message, chunk)

        seeds = [
            json.dumps(message).encode()
            for message in (
                {"is": "started", "rank": 1, "pid": 7},
                {"is": "output", "rank": 0, "of": 2},
                {"is": "ended", "rank": 1, "code": 3},
                {"is": "file", "name": "result.1"},
                {"is": "said", "text": "x"},
                {"is": "output", "rank": 0, "of": 3},
                {"is": "ready", "pid": 1, "host": "h", "port": 2},
            )
        ]
        feed("messages of an agent", reads, seeds, agent_wire.WireError, 500)
    assert {path.name for path in tmp_path.iterdir()} <= {"shown", "result.0", "result.1", "error.0", "error.1"}


@pytest.mark.parametrize("is_known", [False, True])
def test_conversation_of_an_elastic_worker(is_known):
    """Bytes of an unauthenticated peer, and invalid messages of a worker that knows the secret."""

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
    with pytest.raises(WireError, match="a line without an end"):
        for _ in range(1000):
            channel.feed(b"x" * 1024)
    assert len(channel._rest) < 100 << 10
