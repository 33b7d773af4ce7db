"""Another host of a job, as its launcher sees it: the agent there."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.launch.base.call_folder import is_result_of
from lockstep.launch.base.errors import LOST, HostLost, LaunchError
from lockstep.launch.base.output import Console, Stream
from lockstep.launch.local.guard import die_with, kill_group
from lockstep.launch.local.output_folder import OutputCopy
from lockstep.launch.local.worker import LAST_LINES
from lockstep.launch.placement.hosts import Host
from lockstep.launch.remote.agent_wire import DATA_BYTES, MARK, Link, Message, WireError
from lockstep.launch.remote.agent_wire import field as member
from lockstep.launch.remote.remote_worker import RemoteWorker

# From the start of a remote shell to the agent's answer: logins and file systems of the network take their time.
START_TIMEOUT_S = 60.0
# From there to the news of its workers: it may have to ask for devices first, and does nothing else meanwhile.
_WORKERS_TIMEOUT_S = 30.0
_READ_BYTES = 1 << 16


@dataclass
class Assignment:
    """What a host has to do.

    Attributes:
      command: The words that each runs.
      environment: What travels.
      folder: The working folder.
      interface: Which one was chosen for connections between hosts; empty: none.
      assigns_gpus: Whether each worker gets a GPU of its own.
      silence_s: For how long either side may say nothing.
      files: name -> contents, for a folder of the workers.
      results: Where files go that they leave there; None: there are none.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    interface: str
    assigns_gpus: bool
    silence_s: float
    files: Mapping[str, bytes] = field(default_factory=dict)
    results: str | None = None


class RemoteHost:
    """A host with its agent.

    Args:
      host: It, with the number of its workers.
      command: The words that start its agent.
      task: What it has to do.
      console: Where output goes.

    Attributes:
      name: What the user calls it.
      workers: By rank, from `start` on.
      rendezvous: Where rank 0 is reached, of the host that has it: host and port.
      is_ready: The agent is there, and can do what it has to.
      is_over: The agent has nothing more to say.
    """

    def __init__(self, host: Host, command: Sequence[str], task: Assignment, console: Console):
        self.host, self.name = host, host.name
        self._command, self._task, self._console = command, task, console
        self.workers: dict[int, RemoteWorker] = {}
        self.rendezvous: tuple[str, int] | None = None
        self.is_ready = self.is_over = False
        self._meets = False
        self._limit_s = START_TIMEOUT_S
        self._link: Link | None = None
        self._process: subprocess.Popen | None = None
        self._said: deque[bytes] = deque(maxlen=LAST_LINES)

    def connect(self, selector: selectors.BaseSelector, lost: Callable[["RemoteHost", str], None]) -> int:
        """Starts its agent; returns the number of a process group to watch.

        Args:
          selector: Calls the functions that are registered with it (`SupervisedJob`).
          lost: Is told when the agent is gone, and why.
        """
        self._selector, self._lost = selector, lost
        launcher = os.getpid()
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if name != "LOCKSTEP_SECRET"},
                start_new_session=True,
                preexec_fn=lambda: die_with(launcher),
            )
        except OSError as error:
            raise LaunchError(f"host {self.name}: cannot run {self._command[0]!r}: {error.strerror}") from None
        self._process = process
        self._link = Link(process.stdout.fileno(), process.stdin.fileno(), MARK)
        os.set_blocking(process.stderr.fileno(), False)
        self._errors = Stream(
            self._console, self._console.stderr, b"[%s] " % self.name.encode(), False, self._said, True
        )
        selector.register(process.stdout, selectors.EVENT_READ, self._hear)
        selector.register(process.stderr, selectors.EVENT_READ, self._hear_errors)
        return process.pid

    def prepare(self, meets: bool, others: Sequence[str]) -> None:
        """Asks the agent whether it can; of the host with rank 0 where the others reach it."""
        task, self._meets = self._task, meets
        self.say(
            {
                "is": "prepare", "folder": task.folder, "interface": task.interface, "meets": meets, "name": self.name,
                "others": list(others), "silence_s": task.silence_s,
            }
        )  # fmt: skip
        for name, contents in task.files.items():
            for at in range(0, len(contents), DATA_BYTES):
                self.say({"is": "file", "name": name}, contents[at : at + DATA_BYTES])

    def start(
        self, told: Sequence[Mapping[str, str]], copies: Mapping[int, tuple[OutputCopy, OutputCopy]]
    ) -> list[RemoteWorker]:
        """Starts its workers, each with what it is told."""
        task = self._task
        for variables in told:
            rank = int(variables["LOCKSTEP_RANK"])
            self.workers[rank] = RemoteWorker(self.name, rank, self.say, self._console, copies.get(rank))
        self._limit_s = _WORKERS_TIMEOUT_S
        self._link.heard_at = time.monotonic()
        self.say(
            {
                "is": "start", "command": list(task.command), "environment": dict(task.environment),
                "workers": [dict(variables) for variables in told], "assigns_gpus": task.assigns_gpus,
            }
        )  # fmt: skip
        return list(self.workers.values())

    def say(self, message: Message, data: bytes = b"") -> None:
        """Sends a message, where somebody is there."""
        if self._link is not None and not self.is_over:
            self._link.say(message, data)

    def alive(self) -> None:
        """Tells the agent that its launcher is. May be called by another thread."""
        link = self._link
        if link is not None and not self.is_over:
            link.alive()

    def tick(self) -> None:
        """What has to be done though nothing happened."""
        if self.is_over or self._link is None:
            return
        link, target = self._link, self._link.target
        registered = target in self._selector.get_map()
        if self._link.waiting and not registered:
            self._selector.register(target, selectors.EVENT_WRITE, lambda events: link.flush())
        elif registered and not self._link.waiting:
            self._selector.unregister(target)
        if self._link.is_silent(self._limit_s):
            what = "sign of life" if self.workers else "answer"
            self._lose(f"no {what} for {self._limit_s:g} s")

    def silent_at(self) -> float:
        """When it has been silent for too long."""
        return self._link.heard_at + self._limit_s

    def _hear(self, events: int) -> None:
        del events
        if self._link is None:  # Closed since the selector found something to read.
            return
        nobody_reads = False
        try:
            messages, more = self._link.hear()
            for message, data in messages:
                try:
                    self._take(message, data)
                except BrokenPipeError:  # Us; what else the agent says counts all the same.
                    nobody_reads = True
        except WireError as error:
            self._lose(f"its agent's words make no sense: {error}")
            return
        if nobody_reads:
            raise BrokenPipeError
        if not more and not self.is_over:
            # What it was about to say where there is no agent is on its way.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
            self._hear_errors(0)
            self._lose(self._describe_end())

    def _describe_end(self) -> str:
        code = self._process.poll()
        program = os.path.basename(self._command[0])
        how = f"{program} ended with exit code {code}" if code else "its agent is gone"
        words = b" ".join(self._link.frames.noise.split()[-20:]) if not self._link.frames.has_begun else b""
        said = [line for line in (*self._said, words) if line.strip()][-1:]
        return how + "".join(f": {line.decode(errors='replace').strip()}" for line in said)

    def _hear_errors(self, events: int) -> None:
        """What ssh and the agent write on stderr."""
        del events
        if self._process is None or self._process.stderr not in self._selector.get_map():
            return
        descriptor = self._process.stderr.fileno()
        chunk = b""
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(descriptor, _READ_BYTES)
            if not chunk:
                self._selector.unregister(descriptor)
                self._errors.finish()
        self._errors.feed(chunk)

    def _take(self, message: Message, data: bytes) -> None:
        what = message["is"]
        if what == "ready":
            self._pid = member(message, "pid", int)
            if self._meets:
                self.rendezvous = member(message, "host", str), member(message, "port", int)
            self.is_ready = True
        elif what == "refused":
            self._refuse(member(message, "why", str), member(message, "code", int))
        elif what == "said":
            self._console.message(f"{self.name}: {member(message, 'text', str)}")
        elif what == "file":
            self._keep(member(message, "name", str), data)
        elif what == "done":
            self.is_over = True
        elif what in ("started", "output", "ended"):
            self._tell(what, message, data)
        elif what != "alive":
            raise WireError(f"{what!r} means nothing")

    def _tell(self, what: str, message: Message, data: bytes) -> None:
        worker = self.workers.get(member(message, "rank", int))
        if worker is None:
            raise WireError(f"{what}: {self.name} has no rank {message['rank']}")
        if what == "started":
            worker.pid = member(message, "pid", int)
            self._limit_s = self._task.silence_s
        elif what == "ended":
            code = member(message, "code", int)
            if not (0 <= code < 256 or -code in signal.valid_signals()):
                raise WireError(f"ended: a process has no code {code}")
            worker.end(code)
        elif (of := member(message, "of", int)) in (1, 2, 3):
            worker.feed(of, data)
        else:
            raise WireError(f"output: of {of}, wanted 1, 2 or 3")

    def _keep(self, name: str, data: bytes) -> None:
        if self._task.results is None or not self._accepts_file(name):
            raise WireError(f"file: nobody wants one with the name {name[:80]!r}")
        with open(os.path.join(self._task.results, name), "ab") as file:
            file.write(data)

    def _accepts_file(self, name: str) -> bool:
        return is_result_of(name, self.workers)

    def _refuse(self, why: str, code: int) -> None:
        if not 0 < code < 256:
            raise WireError(f"refused: with exit code {code}, wanted 1 to 255")
        raise LaunchError(f"host {self.name}: {why}", code)

    def _lose(self, why: str) -> None:
        """The agent is gone; its workers are, or will be."""
        self.close()
        self._lost(self, why)

    def give_up(self, why: str) -> None:
        """Its workers are lost with it."""
        ranks = ", ".join(map(str, self.workers))
        for worker in self.workers.values():
            worker.end(LOST, f"was lost with host {self.name} (rank{'s' * (len(self.workers) > 1)} {ranks}): {why}")

    def close(self) -> None:
        """Ends the conversation, and what carries it."""
        if self._process is None or self._link is None:
            return
        self.is_over = True
        for descriptor in (self._link.source, self._link.target, self._process.stderr.fileno()):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        # Not the numbers alone: another thread may be about to write.
        link, self._link = self._link, None
        link.close()
        kill_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process = None


def unreachable(host: RemoteHost, why: str) -> HostLost:
    """The error for a host that is lost before its workers run."""
    return HostLost(f"host {host.name} cannot be reached: {why}")
