"""The launcher's view of another host of a job: the connection with the agent there."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.launch.base import interfaces
from lockstep.launch.base.call_folder import is_result_of
from lockstep.launch.base.errors import LOST, HostLost, LaunchError
from lockstep.launch.base.output import Console, Stream
from lockstep.launch.base.seconds import seconds_of
from lockstep.launch.local.guard import die_with
from lockstep.launch.local.output_folder import OutputCopy
from lockstep.launch.local.started import kill_group
from lockstep.launch.local.worker import LAST_LINES
from lockstep.launch.placement.hosts import Host
from lockstep.launch.remote.agent_wire import DATA_BYTES, MARK, SILENCE_S, Link, Message, WireError
from lockstep.launch.remote.agent_wire import field as member
from lockstep.launch.remote.forwarded_environment import forwarded_variables
from lockstep.launch.remote.remote_worker import RemoteWorker

# From the start of a remote shell to the agent's answer: logins and network file systems may be slow.
START_TIMEOUT_S = 60.0
# From there to the message that its workers run: the agent may have to query devices first.
_WORKERS_TIMEOUT_S = 30.0
_READ_BYTES = 1 << 16
# Seconds for which launcher and agents may be silent.
SILENCE_VARIABLE = "LOCKSTEP_AGENT_TIMEOUT"
# A silence of a second or two is normal, and nobody wants to wait for more than an hour.
_LEAST_SILENCE_S, _MOST_SILENCE_S = 2.0, 3600.0


@dataclass
class Assignment:
    """The task of a host's agent.

    Attributes:
      command: The words that each worker runs.
      environment: The variables that are forwarded.
      folder: The working folder.
      interface: The chosen network interface for connections between hosts; empty: none was chosen.
      assigns_gpus: Whether each worker gets a GPU of its own.
      silence_s: For how long either side may be silent.
      files: name -> contents, for a folder of the workers.
      results: The local folder for files that workers leave there; None: they leave none.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    interface: str
    assigns_gpus: bool
    silence_s: float
    files: Mapping[str, bytes] = field(default_factory=dict)
    results: str | None = None


def assignment(
    command: Sequence[str],
    environment: Mapping[str, str],
    assigns_gpus: bool,
    files: Mapping[str, bytes],
    results: str | None,
) -> Assignment:
    """Returns the task of a job's agents, which work in this process's folder.

    Args:
      command: As in `Assignment`.
      environment: The launcher's environment variables.
      assigns_gpus: As in `Assignment`.
      files: As in `Assignment`.
      results: As in `Assignment`.

    Raises:
      LaunchError: the variable for the limit of silence is not a valid number of seconds.
    """
    silence_s = seconds_of(environment, SILENCE_VARIABLE, SILENCE_S, _LEAST_SILENCE_S, _MOST_SILENCE_S)
    interface = environment.get(interfaces.VARIABLE, "")
    forwarded = forwarded_variables(environment)
    return Assignment(command, forwarded, os.getcwd(), interface, assigns_gpus, silence_s, files, results)


class RemoteHost:
    """A host with its agent.

    Args:
      host: The host, with the number of its workers.
      command: The words that start its agent.
      task: What the agent has to run.
      console: Shows the output.

    Attributes:
      name: The host's name, as the user wrote it.
      workers: Rank -> worker, from `start` on.
      rendezvous: Host and port at which rank 0 is reached, for the host that has it.
      is_ready: Whether the agent has answered that it can run its task.
      is_over: Whether the agent has sent its last message.
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
          lost: Called with the reason when the agent is gone.
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
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._process, self._stderr = process, process.stderr
        self._link = Link(process.stdout.fileno(), process.stdin.fileno(), MARK)
        os.set_blocking(process.stderr.fileno(), False)
        self._errors = Stream(
            self._console, self._console.stderr, b"[%s] " % self.name.encode(), False, self._said, True
        )
        selector.register(process.stdout, selectors.EVENT_READ, self._hear)
        selector.register(process.stderr, selectors.EVENT_READ, self._hear_errors)
        return process.pid

    def prepare(self, meets: bool, others: Sequence[str]) -> None:
        """Asks the agent whether it can run its task, and the host of rank 0 for the address of the rendezvous."""
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
        self, worker_variables: Sequence[Mapping[str, str]], copies: Mapping[int, tuple[OutputCopy, OutputCopy]]
    ) -> list[RemoteWorker]:
        """Starts its workers, each with its own variables."""
        task = self._task
        for variables in worker_variables:
            rank = int(variables["LOCKSTEP_RANK"])
            self.workers[rank] = RemoteWorker(self.name, rank, self.say, self._console, copies.get(rank))
        self._limit_s = _WORKERS_TIMEOUT_S
        assert self._link is not None  # `connect` comes first.
        self._link.heard_at = time.monotonic()
        self.say(
            {
                "is": "start", "command": list(task.command), "environment": dict(task.environment),
                "workers": [dict(variables) for variables in worker_variables], "assigns_gpus": task.assigns_gpus,
            }
        )  # fmt: skip
        return list(self.workers.values())

    def say(self, message: Message, data: bytes = b"") -> None:
        """Sends a message if the agent is connected."""
        if self._link is not None and not self.is_over:
            self._link.say(message, data)

    def alive(self) -> None:
        """Tells the agent that its launcher is alive. May be called by another thread."""
        link = self._link
        if link is not None and not self.is_over:
            link.alive()

    def tick(self) -> None:
        """Does what is due after some time: sends waiting bytes, and notices a silent agent."""
        if self.is_over or self._link is None:
            return
        self._link.watch(self._selector)
        if self._link.is_silent(self._limit_s):
            what = "sign of life" if self.workers else "answer"
            self._lose(f"no {what} for {self._limit_s:g} s")

    def silent_at(self) -> float:
        """Returns the time at which the agent will have been silent for too long."""
        assert self._link is not None  # Only connected hosts are asked.
        return self._link.heard_at + self._limit_s

    def _hear(self, events: int) -> None:
        del events
        if self._link is None:  # It was closed after the selector had found something to read.
            return
        nobody_reads = False
        try:
            messages, more = self._link.hear()
            for message, data in messages:
                try:
                    self._take(message, data)
                except BrokenPipeError:  # Our own output; the agent's other messages still count.
                    nobody_reads = True
        except WireError as error:
            self._lose(f"got an invalid message from its agent: {error}")
            return
        if nobody_reads:
            raise BrokenPipeError
        if not more and not self.is_over:
            assert self._process is not None  # It has the same life as the link.
            # If no agent was started, the error message of ssh may still be on its way.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
            self._hear_errors(0)
            self._lose(self._describe_end())

    def _describe_end(self) -> str:
        assert self._process is not None and self._link is not None
        code = self._process.poll()
        program = os.path.basename(self._command[0])
        how = f"{program} ended with exit code {code}" if code else "its agent is gone"
        words = b" ".join(self._link.frames.noise.split()[-20:]) if not self._link.frames.has_begun else b""
        said = [line for line in (*self._said, words) if line.strip()][-1:]
        return how + "".join(f": {line.decode(errors='replace').strip()}" for line in said)

    def _hear_errors(self, events: int) -> None:
        """Shows the stderr of ssh and of the agent."""
        del events
        if self._process is None or self._stderr not in self._selector.get_map():
            return
        descriptor = self._stderr.fileno()
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
            raise WireError(f"{what!r} is not a known message")

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
                raise WireError(f"ended: {code} is not an exit code")
            worker.end(code)
        elif (of := member(message, "of", int)) in (1, 2, 3):
            worker.feed(of, data)
        else:
            raise WireError(f"output: of {of}, wanted 1, 2 or 3")

    def _keep(self, name: str, data: bytes) -> None:
        if self._task.results is None or not self._accepts_file(name):
            raise WireError(f"file: {name[:80]!r} is not expected")
        with open(os.path.join(self._task.results, name), "ab") as file:
            file.write(data)

    def _accepts_file(self, name: str) -> bool:
        return is_result_of(name, self.workers)

    def _refuse(self, why: str, code: int) -> None:
        if not 0 < code < 256:
            raise WireError(f"refused: with exit code {code}, wanted 1 to 255")
        raise LaunchError(f"host {self.name}: {why}", code)

    def _lose(self, why: str) -> None:
        """Closes the connection with an agent that is gone. Its workers have ended, or will end."""
        self.close()
        self._lost(self, why)

    def give_up(self, why: str) -> None:
        """Marks the host's workers as lost."""
        ranks = ", ".join(map(str, self.workers))
        for worker in self.workers.values():
            worker.end(LOST, f"was lost with host {self.name} (rank{'s' * (len(self.workers) > 1)} {ranks}): {why}")

    def close(self) -> None:
        """Closes the connection, and ends the process that carries it."""
        if self._process is None or self._link is None:
            return
        self.is_over = True
        for descriptor in (self._link.source, self._link.target, self._stderr.fileno()):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        # The link itself is closed first, since another thread may be about to write.
        link, self._link = self._link, None
        link.close()
        kill_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process = None


def unreachable(host: RemoteHost, why: str) -> HostLost:
    """Returns the error for a host that is lost before its workers run."""
    return HostLost(f"host {host.name} cannot be reached: {why}")
