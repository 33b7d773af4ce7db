"""The agent on another host: starts that host's workers, and carries out the launcher's requests.

    python -m lockstep.launch.remote.agent

All that it needs comes over its standard input (`agent_wire`), including the job's secret. So the secret is on no
command line and in no file. The agent takes one decision by itself: it ends its workers when the launcher is gone, or
has been silent for too long. If the agent itself is frozen, its guard ends them.
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from lockstep.launch.base import interfaces
from lockstep.launch.base.call_folder import VARIABLE as FOLDER
from lockstep.launch.base.call_folder import all_results, results_of_rank
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.base.ports import free_ports
from lockstep.launch.local.guard import Guard
from lockstep.launch.local.process import command_starter
from lockstep.launch.local.supervised_job import SupervisedJob
from lockstep.launch.local.worker import LocalWorker
from lockstep.launch.placement import plan
from lockstep.launch.placement.worker_environment import with_defaults
from lockstep.launch.remote import agent_wire
from lockstep.launch.remote.agent_wire import ALIVE_EVERY_S, MARK, SILENCE_S, Link, Message, WireError, field
from lockstep.launch.remote.forwarded_environment import combined_environment

# From the launcher's loss to SIGKILL. Together with the silence before it, less than ten seconds.
_LOST_GRACE_S = 1.0
# The guard notices a frozen agent so much later than the launcher, because the launcher's message has more detail.
_FROZEN_AFTER_S = 0.5
# Workers' output is not read while so much of it waits for the launcher, or its terminal, to take it.
_MOST_WAITING_BYTES = 4 << 20
# For the request to start workers: the launcher waits for all hosts first.
_PATIENCE_S = 90.0
# For the farewell messages when the job is over.
_FAREWELL_S = 2.0


class _OutputRelay:
    """A sink that forwards what a worker writes to its stdout (1), its stderr (2) or its notes (3)."""

    def __init__(self, link: Link, rank: int, of: int):
        self._link, self._message = link, {"is": "output", "rank": rank, "of": of}

    def feed(self, chunk: bytes) -> None:
        """Forwards a part of it."""
        self._link.say(self._message, chunk)

    def finish(self) -> None:
        """Does nothing: the message of the worker's end follows."""


class _AgentConsole(Console):
    """A console whose messages go to the launcher, which shows them."""

    def __init__(self, agent: "Agent"):
        super().__init__()
        self._agent = agent

    def message(self, text: str) -> None:
        """Implements `Console.message`."""
        self._agent.tell(text)


class Agent(SupervisedJob):
    """The workers of one host, for a launcher on another."""

    def __init__(self) -> None:
        super().__init__(command_starter([]), [], _AgentConsole(self))
        self._connection: Link | None = None
        self._silence_s = SILENCE_S
        self._is_over = False  # the launcher said so, or is lost
        self._is_lost = False
        self._environment: dict[str, str] = {}
        self._held: set[int] = set()  # workers' pipes that are not read at the moment
        self._alive_at = 0.0
        self._started = self._is_elastic = False
        self._folder: _CallFolder | None = None

    @property
    def _link(self) -> Link:
        """The connection with the launcher, which `_start` makes."""
        assert self._connection is not None
        return self._connection

    def tell(self, text: str) -> None:
        """Sends a message for the user."""
        if self._connection is not None:
            self._connection.say({"is": "said", "text": text})

    def _make_guard(self) -> Guard:
        return Guard(_PATIENCE_S, kills_parent=True)

    def _start(self, guard: Guard, selector: selectors.BaseSelector) -> None:
        self._guard, self._selector = guard, selector
        # The connection gets file descriptors of its own. Anything that is printed here goes to stderr.
        wire = os.dup(1)
        os.dup2(2, 1)
        self._connection = Link(os.dup(0), wire)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.write(wire, MARK)
        selector.register(self._link.source, selectors.EVENT_READ, self._hear)

    def _running(self) -> bool:
        if self._is_lost:
            return super()._running()
        return not self._is_over

    def _select_timeout(self) -> float:
        times = [self._alive_at + ALIVE_EVERY_S] + ([] if self._kill_at is None else [self._kill_at])
        return max(0.05, min(times) - time.monotonic())

    def _wait(self, selector: selectors.BaseSelector, signals: socket.socket) -> None:
        self._hold_back()
        super()._wait(selector, signals)
        now = time.monotonic()
        if now >= self._alive_at + ALIVE_EVERY_S:
            self._alive_at = now
            self._guard.alive()
            self._link.alive()
        self._link.flush()
        limit = self._silence_s if self._started else _PATIENCE_S
        if not self._is_lost and self._link.is_silent(limit):
            self._lose(f"no message from the launcher for {limit:g} s")

    def _hold_back(self) -> None:
        """Pauses reading workers' output while the launcher takes it more slowly."""
        self._link.watch(self._selector)
        waiting = self._link.waiting
        if waiting > _MOST_WAITING_BYTES:
            self._held |= set(self._by_pipe) & set(self._selector.get_map())
            for fd in self._held & set(self._selector.get_map()):
                self._selector.unregister(fd)
        elif waiting < _MOST_WAITING_BYTES // 2:
            for fd in self._held:
                self._selector.register(fd, selectors.EVENT_READ)
            self._held.clear()

    def _hear(self, events: int) -> None:
        del events
        if self._is_lost:
            return
        try:
            messages, more = self._link.hear()
            for message, data in messages:
                self._obey(message, data)
        except WireError as error:
            self._lose(f"invalid message from the launcher: {error}")
            return
        except (LaunchError, OSError) as error:
            code = error.exit_code if isinstance(error, LaunchError) else 2
            self._link.say({"is": "refused", "why": str(error), "code": code})
            self._is_over = True
            return
        if not more:
            self._lose("the launcher is gone")

    def _obey(self, message: Message, data: bytes) -> None:
        does = {
            "prepare": self._prepare, "start": self._start_workers, "add": self._start_another,
            "signal": self._signal, "end": self._finish, "alive": lambda message: None,
        }  # fmt: skip
        if message["is"] == "file":
            self._folder_for_files().append(field(message, "name", str), data)
        elif message["is"] in does:
            does[message["is"]](message)
        else:
            raise WireError(f"{message['is']!r} is not a known message")

    def _prepare(self, message: Message) -> None:
        folder = field(message, "folder", str)
        try:
            os.chdir(folder)
        except OSError as error:
            raise LaunchError(f"the working folder {folder} cannot be used: {error.strerror}") from None
        self._silence_s = field(message, "silence_s", float)
        choice = field(message, "interface", str)
        ready: Message = {"is": "ready", "pid": os.getpid()}
        if choice:
            interfaces.address_of(choice)
        if field(message, "meets", bool):
            others = [str(other) for other in field(message, "others", list)]
            ready["host"] = interfaces.rendezvous_host(field(message, "name", str), choice, others)
            (ready["port"],) = free_ports(1, "")
        self._link.say(ready)

    def _start_workers(self, message: Message) -> None:
        if self._started:
            raise WireError("start: received a second time")
        self._started = True
        words = [str(word) for word in field(message, "command", list)]
        worker_variables = [_variables(worker) for worker in field(message, "workers", list)]
        if not words or not worker_variables or any("LOCKSTEP_RANK" not in worker for worker in worker_variables):
            raise WireError("start: wanted a command, and workers with ranks")
        base, assigns_gpus = self._inherited_variables(message), field(message, "assigns_gpus", bool)
        self._start_worker = command_starter(words)
        self._environments = plan.on_this_host(worker_variables, base, self._console, assigns_gpus=assigns_gpus)
        super()._start(self._guard, self._selector)
        for worker in self._workers:
            self._link.say({"is": "started", "rank": worker.rank, "pid": worker.pid})
        self._guard.set_silence(self._silence_s + _FROZEN_AFTER_S)

    def _start_another(self, message: Message) -> None:
        """Starts one worker of an elastic job. The launcher itself sends the worker its rank before each round."""
        words = [str(word) for word in field(message, "command", list)]
        number, of_host = field(message, "rank", int), field(message, "of_host", int)
        if not words or of_host < 1 or any(worker.rank == number for worker in self._workers):
            raise WireError("add: wanted a command, and a new worker")
        environment = {
            **with_defaults(self._inherited_variables(message), of_host),
            **_variables(field(message, "variables", dict)),
        }
        self._started = self._is_elastic = True
        worker = LocalWorker(command_starter(words)(environment, self._inherited), number, None)
        self._show(worker)
        self._add(worker, self._guard, self._selector)
        self._link.say({"is": "started", "rank": number, "pid": worker.pid})
        self._guard.set_silence(self._silence_s + _FROZEN_AFTER_S)

    def _inherited_variables(self, message: Message) -> dict[str, str]:
        base = combined_environment(_variables(field(message, "environment", dict)), os.environ, os.getcwd())
        return base if self._folder is None else {**base, FOLDER: self._folder.name}

    def _show(self, worker: LocalWorker) -> None:
        worker.show(*(_OutputRelay(self._link, worker.known_rank, of) for of in (1, 2, 3)))

    def _signal(self, message: Message) -> None:
        rank, number = field(message, "rank", int), field(message, "number", int)
        try:
            signum = signal.Signals(number)
        except ValueError:
            raise WireError(f"signal: got {number}, wanted the number of a signal with a name") from None
        for worker in self._workers:
            if worker.rank == rank:
                worker.signal(signum)

    def _finish(self, message: Message) -> None:
        del message
        self._is_over = True

    def _folder_for_files(self) -> "_CallFolder":
        if self._folder is None:
            self._folder = _CallFolder()
            self._guard.removes(self._folder.name)
        return self._folder

    def _lose(self, why: str) -> None:
        """Ends the workers, as the launcher is lost."""
        if self._is_lost:
            return
        self._is_lost = True
        with contextlib.suppress(OSError):
            os.write(2, f"[lockstep] agent on {os.uname().nodename}: {why}; ending the workers\n".encode())
        if self._link.source in self._selector.get_map():
            self._selector.unregister(self._link.source)
        self._signal_all(signal.SIGTERM)
        self._kill_at = time.monotonic() + _LOST_GRACE_S

    def _forward(self, signum: signal.Signals) -> None:
        # The signal comes from this machine or its terminal. The job's own signals come from the launcher as messages.
        self._lose(f"got {signum.name}")

    def _notice_ends(self, selector: selectors.BaseSelector) -> None:
        for worker in list(self._workers):
            assert isinstance(worker, LocalWorker)  # An agent starts no others.
            if worker.poll():
                if self._is_elastic:  # Processes that it started end with it.
                    worker.kill_started()
                for fd in worker.streams:
                    if fd in selector.get_map() or fd in self._held:
                        self._drain(selector, worker, fd)
                if self._folder is not None:
                    self._send_results(Path(self._folder.name), worker.known_rank)
                self._link.say({"is": "ended", "rank": worker.rank, "code": worker.code})
                if self._is_elastic:  # It is freed, since many others may follow.
                    self._held -= set(worker.streams)
                    self._forget(worker, selector)
                    worker.reap()
                    self._workers.remove(worker)

    def _drain(self, selector: selectors.BaseSelector, worker: LocalWorker, fd: int) -> None:
        if worker.read(fd):
            return
        self._held.discard(fd)
        if fd in selector.get_map():
            selector.unregister(fd)

    def _send_results(self, folder: Path, rank: int) -> None:
        # The rank of an elastic job's worker changes, so all files that are there are taken for its own.
        for path in all_results(folder) if self._is_elastic else results_of_rank(folder, rank):
            with path.open("rb") as file:
                while data := file.read(agent_wire.DATA_BYTES):
                    self._link.say({"is": "file", "name": path.name}, data)
            if self._is_elastic:
                path.unlink()

    def _end(self, selector: selectors.BaseSelector) -> None:
        super()._end(selector)
        if self._folder is not None:
            self._folder.cleanup()
        if self._is_lost or self._connection is None:
            return
        self._link.say({"is": "done"})
        deadline = time.monotonic() + _FAREWELL_S
        while self._link.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
            self._link.flush()

    def _result(self) -> int:
        return 1 if self._is_lost else 0


class _CallFolder(tempfile.TemporaryDirectory[str]):
    """The folder for files from the launcher and for results of workers; only this user can read it."""

    def __init__(self) -> None:
        super().__init__(prefix="lockstep-run-")

    def append(self, name: str, data: bytes) -> None:
        """Appends to a file."""
        if not name.isidentifier():
            raise WireError(f"file: {name[:80]!r} is not a valid name")
        with open(os.path.join(self.name, name), "ab") as file:
            file.write(data)


def _variables(of: object) -> dict[str, str]:
    if not isinstance(of, Mapping) or not all(isinstance(value, str) for value in of.values()):
        raise WireError("start: an invalid environment")
    return dict(of)


if __name__ == "__main__":
    sys.exit(Agent().run())
