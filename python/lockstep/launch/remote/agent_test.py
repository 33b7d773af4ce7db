"""The agent by itself, with messages over its standard input and output."""

# Promise of this file (launching.md): the agent refuses malformed messages.

import os
import selectors
import signal
import subprocess
import sys
import time

import pytest

from lockstep.launch.remote.agent_wire import DATA_BYTES, MARK, Link, frame
from lockstep.testing.launching import DEADLINE_S, runs, wait_for

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

SECRET = "deadbeef" * 8


class Talk:
    """A connection with an agent."""

    def __init__(self, temporary):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lockstep.launch.remote.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        self.link = Link(self.process.stdout.fileno(), self.process.stdin.fileno(), MARK)
        self.heard = []

    def say(self, what, data=b"", **members):
        self.link.say({"is": what, **members}, data)

    def prepare(self, folder, **members):
        said = {"interface": "", "meets": False, "name": "here", "others": [], "silence_s": 600.0, **members}
        self.say("prepare", folder=str(folder), **said)

    def start(self, *command, ranks=(3,), **members):
        workers = [
            {"LOCKSTEP_RANK": str(rank), "LOCKSTEP_LOCAL_WORLD_SIZE": str(len(ranks)), "LOCKSTEP_SECRET": SECRET}
            for rank in ranks
        ]
        said = {"command": command, "environment": {}, "workers": workers, "assigns_gpus": False, **members}
        self.say("start", **said)

    def hear(self, what):
        """Returns the next message of the kind `what`, and its data; others before it are kept in `heard`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            deadline = time.monotonic() + DEADLINE_S
            while time.monotonic() < deadline:
                for i, (message, data) in enumerate(self.heard):
                    if message["is"] == what:
                        del self.heard[i]
                        return message, data
                self.link.flush()
                if selector.select(0.1):
                    messages, more = self.link.hear()
                    self.heard += messages
                    assert more or messages, f"the agent ended without {what!r}"
        raise AssertionError(f"waited {DEADLINE_S} s for {what!r}")


@pytest.fixture
def agent(tmp_path):
    """Yields a connection with an agent, which is killed at the end."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    talk = Talk(temporary)
    yield talk
    talk.process.kill()
    talk.process.wait(DEADLINE_S)
    for pipe in (talk.process.stdin, talk.process.stdout, talk.process.stderr):
        pipe.close()


def test_workers_are_started_heard_and_reported(agent, tmp_path):
    agent.prepare(tmp_path, meets=True)
    ready, _ = agent.hear("ready")
    assert ready["pid"] == agent.process.pid
    assert 20001 <= ready["port"] < 32768
    agent.start("sh", "-c", "echo $LOCKSTEP_RANK in $(pwd); exit 5", ranks=(3, 4))
    assert {agent.hear("started")[0]["rank"] for _ in range(2)} == {3, 4}
    assert {agent.hear("output")[1] for _ in range(2)} == {b"%d in %s\n" % (r, bytes(tmp_path)) for r in (3, 4)}
    assert [agent.hear("ended")[0]["code"] for _ in range(2)] == [5, 5]
    agent.say("end")
    agent.hear("done")
    assert agent.process.wait(DEADLINE_S) == 0


def test_signals_go_to_the_rank_that_they_are_for(agent, tmp_path):
    agent.prepare(tmp_path)
    agent.start("sleep", "600", ranks=(0, 1))
    agent.say("signal", rank=1, number=int(signal.SIGTERM))
    ended, _ = agent.hear("ended")
    assert (ended["rank"], ended["code"]) == (1, -signal.SIGTERM)
    agent.say("end")
    agent.hear("done")


def test_files_come_and_go_and_none_is_left(agent, tmp_path):
    agent.prepare(tmp_path)
    agent.say("file", b"a" * DATA_BYTES, name="function")
    agent.say("file", b"b", name="function")
    agent.start("sh", "-c", 'cp "$LOCKSTEP_CALL/function" "$LOCKSTEP_CALL/result.3"; stat -c %a "$LOCKSTEP_CALL"')
    assert agent.hear("output")[1] == b"700\n"
    first, second = agent.hear("file"), agent.hear("file")
    assert first[0]["name"] == "result.3"
    assert first[1] + second[1] == b"a" * DATA_BYTES + b"b"
    agent.hear("ended")
    agent.say("end")
    agent.hear("done")
    assert agent.process.wait(DEADLINE_S) == 0
    assert not list((tmp_path / "temporary").iterdir())


def test_no_file_is_left_of_an_agent_that_is_killed(agent, tmp_path):
    agent.prepare(tmp_path)
    agent.say("file", b"a", name="function")
    agent.start("sleep", "600")
    pid = agent.hear("started")[0]["pid"]
    agent.process.kill()
    wait_for(lambda: not runs(pid) and not list((tmp_path / "temporary").iterdir()), "the guard")


@pytest.mark.parametrize(
    ("does", "why"),
    [
        (lambda agent, folder: agent.prepare(folder / "no"), "the working folder {}/no cannot be used: No such"),
        (lambda agent, folder: agent.prepare(folder, interface="no0"), "network interface 'no0' does not exist"),
        (lambda agent, folder: agent.start("no-such-program"), "cannot run 'no-such-program': No such file"),
    ],
)
def test_what_a_host_cannot_do_is_refused(agent, tmp_path, does, why):
    does(agent, tmp_path)
    refused, _ = agent.hear("refused")
    assert why.format(tmp_path) in refused["why"]
    assert refused["code"] in (2, 127)
    assert agent.process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 100,
        frame({"is": "nothing"}),
        frame({"is": "prepare"}),
        frame({"is": "start", "command": [], "environment": {}, "workers": [], "assigns_gpus": False}),
        frame({"is": "file", "name": "../x"}, b"x"),
        frame({"is": "file", "name": "a/b"}, b"x"),
        frame({"is": "signal", "rank": 0, "number": 999}),
        frame({"is": "signal", "rank": 0, "number": 40}),
    ],
)
def test_words_that_make_no_sense_end_an_agent(agent, tmp_path, data):
    agent.start("sleep", "600")
    pid = agent.hear("started")[0]["pid"]
    os.write(agent.process.stdin.fileno(), data)
    assert agent.process.wait(DEADLINE_S) == 1
    assert b"invalid message from the launcher" in agent.process.stderr.read()
    assert not runs(pid)
    assert not list(tmp_path.glob("x*"))


def test_an_agent_without_a_launcher_ends_its_workers(agent, tmp_path):
    agent.prepare(tmp_path)
    agent.start("sh", "-c", "trap '' TERM; sleep 600")
    pid = agent.hear("started")[0]["pid"]
    agent.process.stdin.close()
    assert agent.process.wait(DEADLINE_S) == 1
    assert not runs(pid)


def test_an_agent_that_hears_nothing_ends_its_workers(agent, tmp_path):
    agent.prepare(tmp_path, silence_s=2.0)
    since = time.monotonic()
    agent.start("sleep", "600")
    pid = agent.hear("started")[0]["pid"]
    assert agent.process.wait(DEADLINE_S) == 1
    assert time.monotonic() - since > 2
    assert not runs(pid)
    assert b"no message from the launcher for 2 s; ending the workers" in agent.process.stderr.read()
