"""Tests of a worker of an elastic job against a launcher in the same process: places, news, ends, and rendezvous."""

from __future__ import annotations

import os
import queue
import socket
import threading

import pytest
import tensorflow as tf

from lockstep._src.engine import elastic
from lockstep._src.engine.context import Context, context
from lockstep.launch.base.elastic_wire import ADDRESS, SECRET, WORKER, Channel, round_secret
from lockstep.launch.base.environment import replaced_environment

TIMEOUT_S = 60
PLACE = {
    "rank": 2,
    "size": 3,
    "local_rank": 1,
    "local_size": 2,
    "cross_rank": 0,
    "cross_size": 1,
    "host": "b",
    "round": 4,
    "rendezvous": "a:7000",
    "all_keep_state": True,
}


class Launcher:
    """The launcher's end of one connection; it keeps what the worker says."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.heard: queue.Queue[dict] = queue.Queue()
        self._channel = Channel("secret", is_launcher=True)
        self._lock = threading.Lock()  # guards _channel
        self._socket: socket.socket | None = None

    def accept(self) -> None:
        """Accepts the worker's connection, and begins to listen to it."""
        self._server.settimeout(TIMEOUT_S)
        self._socket, _ = self._server.accept()
        self._flush()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, **message) -> None:
        with self._lock:
            self._channel.say(message)
            self._flush()

    def say_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        for each in (self._socket, self._server):
            if each is not None:
                each.close()

    def hang_up(self) -> None:
        """Ends the connection as a launcher does that has ended."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        try:
            while data := self._socket.recv(1 << 16):
                with self._lock:
                    messages = self._channel.feed(data)
                    self._flush()
                for message in messages:
                    self.heard.put(message)
        except OSError:
            pass

    def _flush(self) -> None:
        data, self._channel.outgoing = self._channel.outgoing, b""
        self._socket.sendall(data)


@pytest.fixture(name="moved")
def _moved(monkeypatch):
    """Restores the environment after the test; returns a list with an entry for each move of the context."""
    moves = []
    monkeypatch.setattr(Context, "move", lambda self: moves.append(self))
    with replaced_environment(dict(os.environ)):
        yield moves


@pytest.fixture(name="launcher")
def _launcher():
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture(name="worker")
def _worker(launcher, moved):
    worker = elastic.Member(launcher.address, "secret", 5)
    launcher.accept()
    return worker


def entering(worker):
    """Enters a round in another thread; returns a queue with the place, or the error."""
    result = queue.Queue()

    def enter():
        try:
            result.put(worker.enter_round())
        except BaseException as error:
            result.put(error)

    threading.Thread(target=enter, daemon=True).start()
    return result


def test_a_worker_asks_for_a_place_and_writes_it_to_the_environment(worker, launcher, moved):
    worker.has_state = worker.keeps_state = True
    entered = entering(worker)
    asked = launcher.heard.get(timeout=TIMEOUT_S)
    port = asked.pop("port")
    assert 0 < port < 65536
    assert asked == {"is": "ready", "worker": 5, "has_state": True, "keeps_state": True}
    launcher.say(**{"is": "round"}, **PLACE)
    assert entered.get(timeout=TIMEOUT_S) == elastic.Place(**PLACE) == worker.place
    assert moved == [context]
    # Only the round that was asked for keeps the state.
    assert worker.has_state and not worker.keeps_state
    expected = {
        "LOCKSTEP_RANK": "2",
        "LOCKSTEP_WORLD_SIZE": "3",
        "LOCKSTEP_LOCAL_RANK": "1",
        "LOCKSTEP_LOCAL_WORLD_SIZE": "2",
        "LOCKSTEP_RENDEZVOUS": "a:7000",
        "LOCKSTEP_RENDEZVOUS_HERE": "",
        "LOCKSTEP_SECRET": round_secret("secret", 4),
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "b",
    }
    assert {name: os.environ[name] for name in expected} == expected


ENDS = {
    "removed": (lambda launcher: launcher.say(**{"is": "removed"}), SystemExit, "0"),
    "failed": (
        lambda launcher: launcher.say(**{"is": "failed", "why": "too few hosts"}),
        RuntimeError,
        "elastic job: too few hosts",
    ),
    "closed": (lambda launcher: None, RuntimeError, "elastic job: the launcher is gone"),
    "no message of the launcher": (
        lambda launcher: launcher.say_bytes(b"GET / HTTP/1.0\n"),
        RuntimeError,
        "elastic job: the connection to the launcher broke: a message with a wrong MAC",
    ),
    "a place without a rank": (
        lambda launcher: launcher.say(**{"is": "round", "size": 3}),
        RuntimeError,
        "elastic job: the connection to the launcher broke",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_first_end_of_the_job_is_raised_from_then_on(worker, launcher, moved, name):
    end, error_type, text = ENDS[name]
    entered = entering(worker)
    launcher.heard.get(timeout=TIMEOUT_S)
    end(launcher)
    launcher.hang_up()
    error = entered.get(timeout=TIMEOUT_S)
    assert type(error) is error_type and text in str(error)
    # Also after the connection has closed, which is an error of its own.
    assert entering(worker).get(timeout=TIMEOUT_S) is error
    assert worker.place is None and not moved


def test_changes_are_told_to_listeners(worker, launcher):
    first, second = queue.Queue(), queue.Queue()
    worker.listen(first.put)
    worker.listen(second.put)
    launcher.say(**{"is": "changed", "at": 1.5, "added": True, "removed": False})
    change = elastic.Change(1.5, True, False)
    assert first.get(timeout=TIMEOUT_S) == second.get(timeout=TIMEOUT_S) == change
    worker.unlisten(first.put)
    launcher.say(**{"is": "a kind of another version"})
    launcher.say(**{"is": "changed", "at": 2.5, "added": False, "removed": True})
    assert second.get(timeout=TIMEOUT_S) == elastic.Change(2.5, False, True)
    assert first.empty()


def test_a_process_has_one_connection_if_it_belongs_to_an_elastic_job(launcher, moved, monkeypatch):
    monkeypatch.setattr(elastic, "_member", None)
    monkeypatch.delenv(ADDRESS, raising=False)
    assert elastic.member() is None
    for name, value in {ADDRESS: launcher.address, SECRET: "secret", WORKER: "5"}.items():
        monkeypatch.setenv(name, value)
    assert isinstance(elastic.member(), elastic.Member)
    assert elastic.member() is elastic.member()


def test_a_launcher_that_does_not_answer_is_named(moved, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr(elastic, "_member", None)
    for name, value in {ADDRESS: address, SECRET: "secret", WORKER: "5"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        RuntimeError, match=f"elastic job: no launcher answers at {address} .*see the launcher's output"
    ):
        elastic.member()


class Holder:
    """Counts the calls that make it forget."""

    count = 0

    def forget(self):
        self.count += 1


class Asked:
    """A member that counts how often it asks for a place."""

    count = 0

    def enter_round(self):
        self.count += 1


def failing(*errors):
    """Returns a function that raises these errors, one a call, and then returns."""
    left = list(errors)

    def connect():
        if left:
            raise left.pop(0)

    return connect


NOT_MET = [
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
]


@pytest.mark.parametrize("error", NOT_MET, ids=lambda error: error.__name__)
def test_a_rendezvous_during_which_a_worker_died_is_repeated_in_another_round(monkeypatch, error):
    member, holder, count = Asked(), Holder(), elastic.rendezvous_count
    monkeypatch.setattr(elastic, "member", lambda: member)
    elastic.forget_at_rendezvous(holder)
    elastic.join_round(failing(error(None, None, ""), error(None, None, "")))
    assert (member.count, holder.count, elastic.rendezvous_count) == (3, 1, count + 1)


@pytest.mark.parametrize(
    ("is_elastic", "error"),
    [(True, tf.errors.InvalidArgumentError), (False, tf.errors.UnavailableError)],
    ids=["another error", "a fixed job"],
)
def test_other_errors_of_a_rendezvous_are_raised(monkeypatch, is_elastic, error):
    member, holder, count = Asked(), Holder(), elastic.rendezvous_count
    monkeypatch.setattr(elastic, "member", lambda: member if is_elastic else None)
    elastic.forget_at_rendezvous(holder)
    with pytest.raises(error):
        elastic.join_round(failing(error(None, None, "")))
    assert (member.count, holder.count, elastic.rendezvous_count) == (int(is_elastic), 0, count)


@pytest.mark.parametrize(
    ("error", "looks_until_broken", "lost"),
    [
        (ValueError("text of a lane"), 1, True),
        (ValueError("text of a lane"), 2, False),
        (tf.errors.UnknownError(None, None, ""), 3, True),
        (tf.errors.AbortedError(None, None, ""), None, False),
    ],
    ids=["broken", "an error of no lane", "broken a moment later", "never broken"],
)
def test_the_state_of_the_lane_says_whether_peers_are_lost(monkeypatch, error, looks_until_broken, lost):
    looks = []

    def is_broken(group):
        looks.append(group)
        return looks_until_broken is not None and len(looks) >= looks_until_broken

    monkeypatch.setattr(elastic.library, "lane_is_broken", is_broken)
    monkeypatch.setattr(elastic, "_SEEN_WITHIN_S", 0.1 if looks_until_broken is None else 600.0)
    assert elastic.has_lost_peers(error) == lost
    assert set(looks) == {0}
