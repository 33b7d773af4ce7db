"""The launcher's end of the connection with an agent. Stand-ins for agents are programs of a few lines."""

import base64
import os
import selectors
import signal
import time

import pytest

from lockstep.launch.base.errors import LOST, HostLost, LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.placement.hosts import Host
from lockstep.launch.remote.agent_wire import DATA_BYTES, MARK, Frames, WireError, frame
from lockstep.launch.remote.remote_host import Assignment, RemoteHost, unreachable
from lockstep.launch.remote.remote_worker import RemoteWorker
from lockstep.testing.launching import DEADLINE_S, runs

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

READY = frame({"is": "ready", "pid": 7})


class Connection:
    """A host whose agent is a shell command, the launcher's selector, and what is shown."""

    def __init__(self, folder, results=None, files=None, **task):
        self._shown = open(folder / "shown", "wb")  # noqa: SIM115
        self._path, self.losses, self.selector = folder / "shown", [], selectors.DefaultSelector()
        self.console = Console(self._shown.fileno(), self._shown.fileno())
        self._task = Assignment(["true"], {"A": "b"}, "/", "", False, 8.0, files or {}, results, **task)
        self.host = self.pid = None

    def connect(self, *command):
        self.host = RemoteHost(Host("a", 2, "me"), command, self._task, self.console)
        self.pid = self.host.connect(self.selector, lambda host, why: self.losses.append((host, why)))
        return self.host

    def without_agent(self, ranks=(0, 1)):
        """Returns a host with workers whose messages the test delivers itself."""
        self.host = RemoteHost(Host("a", 2), ["true"], self._task, self.console)
        self.host.workers = {rank: RemoteWorker("a", rank, self.host.say, self.console, None) for rank in ranks}
        return self.host

    def until(self, condition):
        """Handles events until a condition is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline
            self.host.tick()
            for key, events in self.selector.select(0.05):
                if key.fd in self.selector.get_map():
                    key.data(events)

    def why(self):
        """Returns why the agent was lost, once it is."""
        self.until(lambda: self.losses)
        ((host, why),) = self.losses
        assert host is self.host
        return why

    def shown(self):
        return self._path.read_text().splitlines()

    def close(self):
        if self.host is not None:
            self.host.close()
        assert not self.selector.get_map()
        self.selector.close()
        self._shown.close()


@pytest.fixture
def connection(tmp_path):
    """Yields a function that makes a connection; nothing of it stays in the selector."""
    made = []

    def make(**task):
        made.append(Connection(tmp_path, **task))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _says(data: bytes, then: str = "exec sleep 600") -> tuple[str, ...]:
    """Returns a command that writes bytes as an agent does, behind the greeting of a login."""
    text = base64.b64encode(b"Welcome\n" + MARK + data).decode()
    return "sh", "-c", f"echo {text} | base64 -d; {then}"


def test_an_agents_answer_is_heard_behind_the_greeting_of_a_login(connection):
    job = connection()
    host = job.connect(*_says(frame({"is": "ready", "pid": 7, "host": "h", "port": 22222})))
    host.prepare(True, [])
    job.until(lambda: host.is_ready)
    assert (host.rendezvous, job.losses) == (("h", 22222), [])


def test_the_request_has_the_task_and_files_in_parts(connection, tmp_path):
    files = {"function": b"x" * (DATA_BYTES + 1)}
    job = connection(files=files)
    host = job.connect("sh", "-c", f"cat > {tmp_path}/heard")
    host.prepare(False, ["b"])
    host.start([{"LOCKSTEP_RANK": "4"}], {})
    path = tmp_path / "heard"
    job.until(lambda: path.exists() and len(Frames().feed(path.read_bytes())) == 4)
    heard = Frames().feed(path.read_bytes())
    asked = {"interface": "", "meets": False, "name": "a", "others": ["b"], "silence_s": 8.0}
    assert heard[0] == ({"is": "prepare", "folder": "/", **asked}, b"")
    assert b"".join(data for message, data in heard[1:3]) == files["function"]
    assert {message["name"] for message, _ in heard[1:3]} == {"function"}
    workers = [{"LOCKSTEP_RANK": "4"}]
    begun = {"is": "start", "command": ["true"], "environment": {"A": "b"}, "workers": workers, "assigns_gpus": False}
    assert heard[3] == (begun, b"")


def test_the_jobs_secret_is_not_in_the_environment_of_the_remote_shell(connection, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_SECRET", "hidden")
    job = connection()
    job.connect("sh", "-c", "echo secret: ${LOCKSTEP_SECRET-none} >&2; exec sleep 600")
    job.until(job.shown)
    assert job.shown() == ["[a] secret: none"]


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        (("sh", "-c", "exit 255"), "sh ended with exit code 255"),
        (("sh", "-c", "echo No route >&2; exit 255"), "sh ended with exit code 255: No route"),
        (("sh", "-c", "echo first; echo not found"), "its agent is gone: first not found"),
        (_says(READY, "exit 0"), "its agent is gone"),
        (_says(READY, "echo Killed >&2"), "its agent is gone: Killed"),
        (_says(b"\xff" * 8), f"got an invalid message from its agent: a frame of {2**32 - 1} and {2**32 - 1} bytes"),
        (_says(frame({"is": "nonsense"})), "got an invalid message from its agent: 'nonsense' is not a known message"),
    ],
)
def test_a_lost_agent_has_a_reason(connection, agent, why):
    job = connection()
    job.connect(*agent)
    assert job.why().startswith(why)
    assert not runs(job.pid)


def test_a_silent_agent_is_lost_and_killed(connection):
    job = connection()
    host = job.connect("sleep", "600")
    host._limit_s = 0.2
    assert host.silent_at() <= time.monotonic() + 0.2
    assert job.why() == "no answer for 0.2 s"
    assert not runs(job.pid)


def test_a_silent_agent_of_workers_gives_no_sign_of_life(connection):
    job = connection()
    host = job.connect("sleep", "600")
    host.start([{"LOCKSTEP_RANK": "0"}], {})
    host._limit_s = 0.2
    assert job.why() == "no sign of life for 0.2 s"


def test_nothing_is_said_to_an_agent_that_is_over(connection):
    job = connection()
    host = job.connect(*_says(frame({"is": "done"})))
    job.until(lambda: host.is_over)
    host.say({"is": "end"})
    host.alive()
    host.tick()
    assert job.losses == []


def test_a_program_that_is_not_there_is_refused(connection):
    with pytest.raises(LaunchError, match="^host a: cannot run 'no-such-ssh': No such file or directory$"):
        connection().connect("no-such-ssh", "a")


def test_a_refusal_has_the_hosts_name_and_the_agents_code(connection):
    job = connection()
    job.connect(*_says(frame({"is": "refused", "why": "no such folder", "code": 127})))
    with pytest.raises(LaunchError, match="^host a: no such folder$") as refused:
        job.until(lambda: False)
    assert refused.value.exit_code == 127


@pytest.mark.parametrize("code", [0, -1, 256, 512])
def test_a_refusal_whose_code_says_that_all_is_well_makes_no_sense(connection, code):
    with pytest.raises(WireError, match=f"refused: with exit code {code}, wanted 1 to 255"):
        connection().without_agent()._take({"is": "refused", "why": "no", "code": code}, b"")


def test_output_and_ends_reach_the_worker_that_they_are_of(connection):
    job = connection()
    host = job.without_agent()
    host._take({"is": "started", "rank": 1, "pid": 33}, b"")
    host._take({"is": "output", "rank": 1, "of": 1}, b"one\n")
    host._take({"is": "output", "rank": 1, "of": 3}, b'{"is": "failed", "because": "peer"}\n')
    host._take({"is": "said", "text": "of the agent"}, b"")
    host._take({"is": "ended", "rank": 1, "code": -9}, b"")
    worker = host.workers[1]
    assert worker.label == "rank 1 (pid 33 on a)"
    assert (worker.code, worker.is_secondary, worker.describe_end()) == (-9, True, "was killed by SIGKILL")
    assert (worker.poll(), worker.poll(), host.workers[0].poll()) == (True, False, False)
    assert job.shown() == ["[1] one", "[lockstep] a: of the agent"]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"is": "started", "rank": 5, "pid": 1}, "started: a has no rank 5"),
        ({"is": "started", "rank": 1, "pid": "1"}, "started: pid is '1', wanted int"),
        ({"is": "output", "rank": 1, "of": 4}, "output: of 4, wanted 1, 2 or 3"),
        ({"is": "ended", "rank": 1, "code": 256}, "ended: 256 is not an exit code"),
        ({"is": "ended", "rank": 1, "code": -65}, "ended: -65 is not an exit code"),
        ({"is": "file", "name": "result.7"}, "file: 'result.7' is not expected"),
        ({"is": "file", "name": "../result.1"}, "file: '../result.1' is not expected"),
        ({"is": "ready"}, "ready: pid is 'None', wanted int"),
        ({"is": "what"}, "'what' is not a known message"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(connection, tmp_path, message, why):
    with pytest.raises(WireError) as refused:
        connection(results=str(tmp_path)).without_agent()._take(message, b"")
    assert str(refused.value) == why


def test_files_of_workers_are_kept_in_the_folder_for_results(connection, tmp_path):
    (tmp_path / "results").mkdir()
    host = connection(results=str(tmp_path / "results")).without_agent()
    for part in (b"one ", b"two"):
        host._take({"is": "file", "name": "result.1"}, part)
    assert (tmp_path / "results" / "result.1").read_bytes() == b"one two"


def test_no_file_is_accepted_where_no_results_are_expected(connection):
    with pytest.raises(WireError, match="file: 'result.1' is not expected"):
        connection().without_agent()._take({"is": "file", "name": "result.1"}, b"x")


@pytest.mark.parametrize(("ranks", "told"), [((0, 1), "ranks 0, 1"), ((3,), "rank 3")])
def test_workers_of_a_lost_host_are_lost_with_it(connection, ranks, told):
    host = connection().without_agent(ranks)
    host.give_up("no sign of life")
    for worker in host.workers.values():
        assert worker.describe_end() == f"was lost with host a ({told}): no sign of life"
        assert (worker.code, worker.urgency) == (LOST, -LOST)


def test_a_host_that_cannot_be_reached_has_sshs_exit_code(connection):
    lost = unreachable(connection().without_agent(), "why")
    assert isinstance(lost, HostLost)
    assert (str(lost), lost.exit_code) == ("host a cannot be reached: why", 255)


def test_a_reader_of_our_output_that_has_left_does_not_lose_the_agents_other_messages(tmp_path):
    read, write = os.pipe()
    os.close(read)
    console = Console(write, write)
    host = RemoteHost(
        Host("a", 1), _says(frame({"is": "output", "rank": 0, "of": 1}, b"x\n") + READY),
        Assignment(["true"], {}, "/", "", False, 8.0), console,
    )  # fmt: skip
    with selectors.DefaultSelector() as selector:
        host.connect(selector, lambda *_: None)
        host.workers = {0: RemoteWorker("a", 0, host.say, console, None)}
        deadline = time.monotonic() + DEADLINE_S
        with pytest.raises(BrokenPipeError):
            while time.monotonic() < deadline:
                for key, events in selector.select(0.05):
                    key.data(events)
        assert host.is_ready
        host.close()
    os.close(write)


def test_signals_of_a_worker_go_to_its_agent(connection, tmp_path):
    job = connection()
    job.connect("sh", "-c", f"cat > {tmp_path}/heard")
    worker = RemoteWorker("a", 1, job.host.say, job.console, None)
    worker.signal(signal.SIGTERM)
    wanted = frame({"is": "signal", "rank": 1, "number": 15})
    job.until(lambda: (tmp_path / "heard").exists() and (tmp_path / "heard").read_bytes() == wanted)
