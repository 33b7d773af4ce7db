"""A worker of an elastic job: its place in each round, and news of the job.

The launcher decides (lockstep/launch/elastic/driver.py). A worker asks it for a place before each round, and meets the
others of the round then. Who was told that hosts have changed, or sees that a peer died, leaves its round and asks
again: with another rank, among another number, in the same process.
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

# How soon a death is seen by all who wait for the dead (docs/design.md).
_SEEN_WITHIN_S = 3.0
# What a meeting fails with where a rank died meanwhile.
_NOT_MET = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
)
_OF_LANES = (*_NOT_MET, tf.errors.AbortedError, tf.errors.UnknownError)


@dataclasses.dataclass(frozen=True)
class Place(places.Place):
    """Where a worker stands in a round, and:

    Attributes:
      round: counts them, from 1.
      rendezvous: "host:port" where rank 0 waits for the others.
      all_keep_state: all workers have said that they keep their state; a newcomer never does.
    """

    round: int
    rendezvous: str
    all_keep_state: bool

    def write(self, environment: MutableMapping[str, str], secret: str) -> None:
        """Says it in the variables that a launcher of a fixed job sets."""
        values = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.local_size,
            "RENDEZVOUS": self.rendezvous,
            "RENDEZVOUS_HERE": "",
            "SECRET": round_secret(secret, self.round),
        }
        environment.update({f"LOCKSTEP_{name}": str(value) for name, value in values.items()})
        environment.update(self.horovod_variables())


@dataclasses.dataclass(frozen=True)
class Change:
    """News of the job's hosts, for workers that train: they should ask for a new place when it suits them.

    Attributes:
      at: when it was said, in seconds; later ones are larger.
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
      secret: of the job.
      number: of this worker.

    Attributes:
      place: in the round of now; None before the first.
      has_state: whether this worker has the job's state: one of those that have it gets rank 0.
      keeps_state: whether it needs none from rank 0 in the next round; for that round alone.
    """

    def __init__(self, address: str, secret: str, number: int):
        self._secret, self._number = secret, number
        self._channel = Channel(secret, is_launcher=False)
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=60)
        self._socket.settimeout(None)
        self._lock = threading.Lock()  # guards _channel and _listeners
        self._listeners: list[Callable[[Change], None]] = []
        # Answers to `enter_round`: a Place, or what it raises.
        self._answers: queue.Queue[Place | BaseException] = queue.Queue()
        self.place: Place | None = None
        self.has_state = self.keeps_state = False
        threading.Thread(target=self._listen, name="lockstep elastic", daemon=True).start()

    def enter_round(self) -> Place:
        """Asks for a place in the next round, and waits until that begins; `place` is in the environment then.

        Raises:
          SystemExit: the job has no place for this worker any more; with 0.
          RuntimeError: the job has failed, or its launcher is gone.
        """
        states = {"has_state": self.has_state, "keeps_state": self.keeps_state}
        # Where this worker becomes rank 0 it listens there: who else knows which ports of this host are free?
        (port,) = free_ports(1, "")
        self._say({"is": "ready", "worker": self._number, "port": port, **states})
        self.keeps_state = False
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            self._answers.put(answer)
            raise answer
        self.place = answer
        answer.write(os.environ, self._secret)
        context.move()
        return answer

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Has a function called with each change, on another thread."""
        with self._lock:
            self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        """Ends that."""
        with self._lock:
            self._listeners.remove(listener)

    def _say(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._channel.say(message)
            self._flush()

    def _flush(self) -> None:
        data, self._channel.outgoing = self._channel.outgoing, b""
        # Of a launcher that is gone, `_listen` hears.
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
    """The worker of an elastic job that this process is; None where it is none. Connects when it is first called.

    Raises:
      RuntimeError: the launcher cannot be reached.
    """
    global _member  # One connection a process, as it has one environment.
    with _member_lock:
        if _member is None and ADDRESS in os.environ:
            try:
                _member = Member(os.environ[ADDRESS], os.environ[SECRET], int(os.environ[WORKER]))
            except OSError as error:
                raise RuntimeError(f"elastic job: no launcher at {os.environ[ADDRESS]}: {error}") from None
        return _member


meetings = 0  # How often this process has met others, in whatever job.
_at_meetings: weakref.WeakSet[Any] = weakref.WeakSet()


def forget_at_meetings(holder: Any) -> None:
    """Has `holder.forget()` called whenever this process has met others, as long as there is the object.

    For what ranks have begun together, and cannot complete among others.
    """
    _at_meetings.add(holder)


def meet(connect: Callable[[], None]) -> None:
    """Calls `connect`, which meets the other workers at the place that the environment says.

    In an elastic job, after a place was asked for; again, in another round, where a worker died meanwhile. Then what
    `forget_at_meetings` was given forgets.

    Raises:
      SystemExit: an elastic job has no place for this worker any more; with 0.
      RuntimeError: an elastic job has failed.
      tf.errors.OpError: as `connect`.
    """
    global meetings
    _connect(connect)
    meetings += 1
    for holder in list(_at_meetings):
        holder.forget()


def _connect(connect: Callable[[], None]) -> None:
    worker = member()
    if worker is None:
        return connect()
    while True:
        worker.enter_round()
        # Another try follows, until the launcher says that there is no use in it.
        with contextlib.suppress(*_NOT_MET):
            return connect()


def has_lost_peers(error: BaseException) -> bool:
    """Whether this round's lane has ended: a peer died or left, so that nothing can follow in it.

    Says so by the lane's state, not by the error's class or text, which may have any other cause.

    Args:
      error: what was raised; where it may come of the lane, this waits for a while, as the lane may be known to be
        broken a moment later.
    """
    deadline = time.monotonic() + (_SEEN_WITHIN_S if isinstance(error, _OF_LANES) else 0)
    while not library.lane_is_broken(0):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True
