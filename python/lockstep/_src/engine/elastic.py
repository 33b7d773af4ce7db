"""A worker of an elastic job: its place in each round, and news of the job.

The launcher decides about places (lockstep/launch/elastic/driver.py). A worker asks it for a place before each round,
and then connects to the other workers of the round. A worker leaves its round if the launcher reports a change of the
hosts, or if a peer died. In the same process, it then asks for the next place, with another rank and job size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import tensorflow as tf

from lockstep._src.engine import library
from lockstep._src.engine.context import context
from lockstep.launch.base import places
from lockstep.launch.base.elastic_wire import ADDRESS, SECRET, WORKER, Channel, WireError, round_secret
from lockstep.launch.base.ports import free_ports

# A rank that waits for a dead one has its error in less than 2 s (core/comm/collective/communicator.h). One more second
# is for a busy machine.
_SEEN_WITHIN_S = 3.0
# The errors of a rendezvous during which a rank died.
_RENDEZVOUS_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
)
_LANE_ERRORS = (*_RENDEZVOUS_ERRORS, tf.errors.AbortedError, tf.errors.UnknownError)


@dataclasses.dataclass(frozen=True)
class Place(places.Place):
    """The place of a worker in a round.

    Attributes:
      round: the number of the round, from 1.
      rendezvous: "host:port" where rank 0 waits for the others.
      all_keep_state: whether all workers have said that they keep their state; a new worker never does.
    """

    round: int
    rendezvous: str
    all_keep_state: bool

    def write(self, environment: MutableMapping[str, str], secret: str) -> None:
        """Writes the place to the variables that the launcher of a fixed job sets."""
        environment.update(self.variables())
        environment.update(self.horovod_variables())
        environment["LOCKSTEP_RENDEZVOUS"] = self.rendezvous
        environment["LOCKSTEP_RENDEZVOUS_HERE"] = ""
        environment["LOCKSTEP_SECRET"] = round_secret(secret, self.round)


@dataclasses.dataclass(frozen=True)
class Change:
    """News of the job's hosts for workers that train; they should ask for a new place at a suitable time.

    Attributes:
      at: when the launcher sent it, in seconds; later news have larger times.
      added: workers wait to join.
      removed: workers have to leave.
    """

    at: float
    added: bool
    removed: bool


class Member:
    """The connection of this process to its launcher. Thread-safe.

    Args:
      address: "host:port" of the launcher's service.
      secret: the secret of the job.
      number: the number of this worker.

    Attributes:
      place: the place in the current round; None before the first.
      has_state: whether this worker has the job's state. The launcher gives rank 0 to a worker that has it.
      keeps_state: whether this worker needs no state from rank 0 in the next round. Each new round resets it.
    """

    def __init__(self, address: str, secret: str, number: int):
        self._secret, self._number = secret, number
        self._channel = Channel(secret, is_launcher=False)
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=60)
        self._socket.settimeout(None)
        self._lock = threading.Lock()  # guards _channel and _listeners
        self._listeners: list[Callable[[Change], None]] = []
        # Answers to `enter_round`: a Place, or the error to raise.
        self._answers: queue.Queue[Place | BaseException] = queue.Queue()
        self._end: BaseException | None = None  # the first such error, which is raised from then on
        self.place: Place | None = None
        self.has_state = self.keeps_state = False
        threading.Thread(target=self._listen, name="lockstep elastic", daemon=True).start()

    def enter_round(self) -> Place:
        """Asks for a place in the next round, waits until the round begins, and writes the place to the environment.

        Raises:
          SystemExit: the job has no place for this worker any more; the exit code is 0.
          RuntimeError: the job has failed, or its launcher has ended.
        """
        states = {"has_state": self.has_state, "keeps_state": self.keeps_state}
        # If this worker becomes rank 0, it listens on this port; only a worker knows which ports of its host are free.
        (port,) = free_ports(1, "")
        self._say({"is": "ready", "worker": self._number, "port": port, **states})
        self.keeps_state = False
        answer = self._end or self._answers.get()
        if isinstance(answer, BaseException):
            self._end = answer
            raise answer
        self.place = answer
        answer.write(os.environ, self._secret)
        context.move()
        return answer

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Registers a function that another thread calls with each change."""
        with self._lock:
            self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        """Removes a registered function."""
        with self._lock:
            self._listeners.remove(listener)

    def _say(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._channel.say(message)
            self._flush()

    def _flush(self) -> None:
        data, self._channel.outgoing = self._channel.outgoing, b""
        # `_listen` reports a launcher that has ended.
        with contextlib.suppress(OSError):
            self._socket.sendall(data)

    def _listen(self) -> None:
        try:
            while data := self._socket.recv(1 << 16):
                with self._lock:
                    messages = self._channel.feed(data)
                    self._flush()
                for message in messages:
                    self._take(message)
        except (OSError, WireError, TypeError, KeyError) as error:
            self._answers.put(RuntimeError(f"elastic job: the connection to the launcher broke: {error}"))
        else:
            self._answers.put(RuntimeError("elastic job: the launcher is gone"))

    def _take(self, message: dict[str, Any]) -> None:
        kind = message.pop("is")
        if kind == "round":
            self._answers.put(Place(**message))
        elif kind == "removed":
            self._answers.put(SystemExit(0))
        elif kind == "failed":
            self._answers.put(RuntimeError(f"elastic job: {message['why']}"))
        elif kind == "changed":
            with self._lock:
                listeners = list(self._listeners)
            for listener in listeners:
                listener(Change(**message))


_member: Member | None = None
_member_lock = threading.Lock()


def member() -> Member | None:
    """Returns this process as a worker of an elastic job, None if it is not one. The first call connects.

    Raises:
      RuntimeError: the launcher cannot be reached.
    """
    global _member  # one connection per process, which also has only one environment
    with _member_lock:
        if _member is None and ADDRESS in os.environ:
            try:
                _member = Member(os.environ[ADDRESS], os.environ[SECRET], int(os.environ[WORKER]))
            except OSError as error:
                raise RuntimeError(
                    f"elastic job: no launcher answers at {os.environ[ADDRESS]} ({error}); see the launcher's output"
                ) from None
        return _member


rendezvous_count = 0  # the number of times that this process has connected to other ranks, in any job
_at_rendezvous: weakref.WeakSet[Any] = weakref.WeakSet()


def forget_at_rendezvous(holder: Any) -> None:
    """Has `holder.forget()` called after each rendezvous of this process, as long as `holder` exists.

    It is for work that ranks have begun together, and cannot complete with other ranks.
    """
    _at_rendezvous.add(holder)


def join_round(connect: Callable[[], None]) -> None:
    """Calls `connect`, which connects to the other workers at the place that the environment gives.

    In an elastic job, this process asks for a place first. It asks again, for another round, if a worker died during
    the rendezvous. Afterwards the holders that were passed to `forget_at_rendezvous` forget.

    Raises:
      SystemExit: an elastic job has no place for this worker any more; the exit code is 0.
      RuntimeError: an elastic job has failed.
      tf.errors.OpError: as `connect`.
    """
    global rendezvous_count
    _connect_in_rounds(connect)
    rendezvous_count += 1
    for holder in list(_at_rendezvous):
        holder.forget()


def _connect_in_rounds(connect: Callable[[], None]) -> None:
    worker = member()
    if worker is None:
        return connect()
    while True:
        worker.enter_round()
        # After such an error the worker tries again, until the launcher says that the job has failed.
        with contextlib.suppress(*_RENDEZVOUS_ERRORS):
            return connect()


def has_lost_peers(error: BaseException) -> bool:
    """Returns whether this round's lane has ended because a peer died or left, so that no collective can follow.

    The lane's state decides, as an error's class and text may have any other cause.

    Args:
      error: the error that was raised. If it may come from the lane, this waits up to 3 s, because the lane may be
        marked as broken only a moment later.
    """
    deadline = time.monotonic() + (_SEEN_WITHIN_S if isinstance(error, _LANE_ERRORS) else 0)
    while not library.lane_is_broken(0):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True
