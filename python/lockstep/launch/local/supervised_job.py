"""Starts the workers of a launcher, supervises them, and ends them together.

The job runs in one thread with one selector. This waits for workers' pipes, and for a pipe into which the interpreter
writes the number of every signal that arrives (`signal.set_wakeup_fd`), SIGCHLD among them. A worker that ended stays a
zombie until the job is over. So its process group keeps its number, and no signal reaches a foreign process by mistake.
"""

import contextlib
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.notes import ITSELF
from lockstep.launch.base.output import Console, streams_of
from lockstep.launch.local.endings import INTERRUPT_VARIABLE, interrupt_timeout_of, own_failure, with_checkpoint
from lockstep.launch.local.guard import Guard
from lockstep.launch.local.output_folder import Copies
from lockstep.launch.local.process import Start, open_files
from lockstep.launch.local.started import kill_started, signal_started
from lockstep.launch.local.worker import LocalWorker, Worker

# From one worker's failure to SIGKILL for workers that did not follow SIGTERM; and from SIGKILL until they count as
# stuck.
STOP_TIMEOUT_S = 3.0
KILL_TIMEOUT_S = 1.0
# After Ctrl-C, which all workers receive: how long the others may still run when the first has ended.
_INTERRUPTED_TIMEOUT_S = 2.0
# How long to wait for the cause when a rank ends because of another's end: interpreters take their time to end.
_MOMENT_S = 1.5
# For the last output of processes that workers left behind.
_DRAIN_TIMEOUT_S = 0.5
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_FORWARDED = _ENDING | {signal.SIGUSR1, signal.SIGUSR2}


class SupervisedJob:
    """The workers of one launcher, which are its child processes.

    Args:
      start: Starts a worker.
      environments: One per worker, with LOCKSTEP_RANK.
      console: Shows the output.
      copies: For each rank, the files that also get its stdout and its stderr.
      files: A folder of the caller's with files for the workers. It is removed if the launcher is killed.
    """

    def __init__(
        self,
        start: Start,
        environments: Sequence[Mapping[str, str]],
        console: Console,
        copies: Copies | None = None,
        files: str | None = None,
    ):
        self._files = files
        self._start_worker, self._environments, self._console = start, environments, console
        self._copies = copies or {}
        self._inherited: frozenset[int] = frozenset()
        self._workers: list[Worker] = []
        self._by_pipe: dict[int, LocalWorker] = {}
        self._failed: Worker | None = None
        self._ended_badly: list[Worker] = []  # ended with another exit code than 0, in this order
        self._first_failure_at: float | None = None  # when the first of them ended
        self._named: Worker | None = None  # the one that was reported to the user
        self._judge_at: float | None = None  # when to decide which of them is the cause
        self._end_requests = 0  # how many signals asked for the end
        self._end_signal: signal.Signals | None = None  # the first of these
        self._remind_at: float | None = None  # when to say that a second signal ends the workers
        self._interrupt_timeout_s = interrupt_timeout_of(os.environ)
        self._enforce_at: float | None = None  # when to end workers that did not follow the first signal
        self._kill_at: float | None = None
        self._kill_timeout_s = KILL_TIMEOUT_S
        self._broken_pipe = False
        self._started_at = time.monotonic()

    def run(self) -> int:
        """Runs the job to its end. Must be called in the main thread.

        Returns:
          0 if every worker returned 0. Otherwise the exit code of the worker whose failure caused the others', or 128
          plus a signal's number: of the signal that killed it, or of the first signal that asked the job to end. 141
          if the reader of the launcher's own output went away.

        Raises:
          LaunchError: the command cannot be executed.
        """
        self._inherited = open_files()
        self._console.tracebacks.clear()  # tracebacks of the attempt before
        with self._make_guard() as guard, selectors.DefaultSelector() as selector, _signals(selector) as signals:
            try:
                if self._files is not None:
                    guard.removes(self._files)
                self._start(guard, selector)
                while self._running():
                    self._wait(selector, signals)
            finally:
                self._end(selector)
        return self._result()

    @property
    def why(self) -> str:
        """The reason why the job ended without a worker's failure; empty if there is nothing to say."""
        return ""

    def ranks(self) -> Sequence[int]:
        """Returns the ranks of the workers, for a job in which all ended with 0."""
        return [int(environment["LOCKSTEP_RANK"]) for environment in self._environments]

    @property
    def failed(self) -> Worker | None:
        """The worker whose failure caused the others', once the job has ended."""
        return self._failed

    @property
    def exchanged_nothing(self) -> bool:
        """Whether it has ended, rank 0 and other workers were among its workers, and none has exchanged anything."""
        workers = self._workers
        return len(workers) > 1 and workers[0].rank == 0 and not any(worker.notes.has_exchanged for worker in workers)

    @property
    def may_restart(self) -> bool:
        """Whether the job ended because a worker failed, and not because somebody asked for the end."""
        return self._failed is not None and not self._end_requests and not self._broken_pipe

    def _make_guard(self) -> Guard:
        return Guard()

    def _start(self, guard: Guard, selector: selectors.BaseSelector) -> None:
        for environment in self._environments:
            process = self._start_worker(environment, self._inherited)
            rank = int(environment["LOCKSTEP_RANK"])
            worker = LocalWorker(process, rank, self._copies.get(rank))
            self._show(worker)
            self._add(worker, guard, selector)

    def _show(self, worker: LocalWorker) -> None:
        """Connects a worker's output with the console."""
        worker.console = self._console
        worker.show(*streams_of(worker.rank, self._console, worker.last_lines, start_up=worker.start_up), worker.notes)

    def _add(self, worker: LocalWorker, guard: Guard, selector: selectors.BaseSelector) -> None:
        guard.watch(worker.pid, worker.mark)
        self._workers.append(worker)
        for fd in worker.streams:
            self._by_pipe[fd] = worker
            selector.register(fd, selectors.EVENT_READ)

    def _forget(self, worker: LocalWorker, selector: selectors.BaseSelector) -> None:
        """Stops watching a worker's pipes: files that are opened later may get the same numbers."""
        for fd in worker.streams:
            del self._by_pipe[fd]
            if fd in selector.get_map():  # A process that left the worker's group still holds the other end.
                selector.unregister(fd)

    def _running(self) -> bool:
        if self._kill_at is not None and time.monotonic() > self._kill_at + self._kill_timeout_s:
            return False  # SIGKILL did not end them either.
        return any(worker.code is None for worker in self._workers)

    def _wait(self, selector: selectors.BaseSelector, signals: socket.socket) -> None:
        arrived: list[int] = []
        for key, events in selector.select(self._select_timeout()):
            if key.fileobj is signals:
                arrived += signals.recv(4096)
            elif key.data is not None:  # Registered with a function to be called.
                self._call(key.data, events)
            elif key.fd in selector.get_map():
                self._read(selector, key.fd)
        for signum in arrived:
            if signum in _FORWARDED:  # A program that calls `run` may handle other signals, such as a timer's.
                self._forward(signal.Signals(signum))
        self._notice_ends(selector)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._signal_all(signal.SIGKILL)
        if self._remind_at is not None and time.monotonic() >= self._remind_at:
            self._remind()
        if self._enforce_at is not None and time.monotonic() >= self._enforce_at:
            self._enforce()

    def _select_timeout(self) -> float | None:
        """Returns for how many seconds the selector may wait; None: without limit."""
        wanted = (self._kill_at, self._remind_at, self._enforce_at, self._judge_at)
        times = [at for at in wanted if at is not None]
        return max(0.05, min(times) - time.monotonic()) if times else None

    def _read(self, selector: selectors.BaseSelector, fd: int) -> None:
        try:
            more = self._by_pipe[fd].read(fd)
        except BrokenPipeError:
            more = True  # A worker that saves and prints must not block: what it prints is lost.
            self._lose_reader()
        if not more:
            selector.unregister(fd)

    def _call(self, function: Callable[[int], None], events: int) -> None:
        try:
            function(events)
        except BrokenPipeError:
            self._lose_reader()

    def _lose_reader(self) -> None:
        """Asks the workers to end since nobody reads our output any more (`... | head`). They may save before."""
        if self._broken_pipe:
            return
        self._broken_pipe = True
        self._console.ignore_broken_pipes()
        self._end_requests += 1
        self._signal_all(signal.SIGTERM)
        if self._enforce_at is None:
            self._enforce_at = time.monotonic() + self._interrupt_timeout_s

    def _forward(self, signum: signal.Signals) -> None:
        if signum not in _ENDING:
            self._signal_all(signum)
            return
        self._end_requests += 1
        self._end_signal = self._end_signal or signum
        now = time.monotonic()
        if self._end_requests > 1:
            self._report(f"{signum.name} again: ending the workers")
            self._end_all(now)
            return
        self._signal_all(signum)
        self._remind_at = now + STOP_TIMEOUT_S
        if signum == signal.SIGINT:
            self._enforce_at = now + self._interrupt_timeout_s

    def _still_running(self) -> str:
        return ", ".join(worker.name for worker in self._workers if worker.code is None)

    def _remind(self) -> None:
        """Shows which workers still run after a signal. A worker in an exchange that hangs does not notice one."""
        self._remind_at = None
        running = self._still_running()
        if not running or self._kill_at is not None:
            return
        assert self._end_signal is not None  # Its arrival set the time of this reminder.
        text = f"{self._end_signal.name} was forwarded; still running: {running}. Send it again to kill them"
        if self._enforce_at is not None:
            text += f", or wait {max(0.0, self._enforce_at - time.monotonic()):.0f} s ({INTERRUPT_VARIABLE})"
        self._report(text)

    def _enforce(self) -> None:
        """Ends the workers that still run after an interrupt."""
        self._enforce_at = self._remind_at = None
        running = self._still_running()
        if running and self._kill_at is None:
            signum = self._end_signal or signal.SIGTERM
            self._report(f"{signum.name} was forwarded {self._interrupt_timeout_s:g} s ago; ending {running}")
            self._end_all(time.monotonic())

    def _end_all(self, now: float) -> None:
        self._signal_all(signal.SIGTERM)
        self._kill_at = self._kill_at or now + STOP_TIMEOUT_S

    def _notice_ends(self, selector: selectors.BaseSelector) -> None:
        ended = [worker for worker in self._workers if worker.poll()]
        for worker in sorted(ended, key=lambda worker: worker.urgency):
            if worker.code == 0:
                continue
            for fd in worker.streams:  # Its notes on how it ended, and its last lines.
                if fd in selector.get_map():
                    self._read(selector, fd)
            self._ended_badly.append(worker)
        if not self._ended_badly or self._failed:
            return
        self._first_failure_at = self._first_failure_at or time.monotonic()
        self._failed = own_failure(self._ended_badly, self._end_signal) if self._end_requests else self._cause()
        named = self._failed or (self._ended_badly[0] if self._end_requests else None)
        if named is None or named is self._named:
            return
        self._named = named
        if self._failed is not None:  # a worker that ended on request has not failed
            seconds = time.monotonic() - self._started_at
            self._report(
                f"{named.label} {named.describe_end()} after {seconds:.1f} s"
                + ("; ending the other workers" if self._still_running() else "")
            )
        self._stop()

    def _cause(self) -> Worker | None:
        """Returns the worker whose failure caused the others'; None while it is too early to say.

        The cause has failed by itself, or was killed. Workers that failed because they lost a peer have noted so.
        """
        causes = [worker for worker in self._ended_badly if not worker.is_secondary]
        if not causes and self._still_running():
            causes = [worker for worker in self._workers if worker.code is None and worker.notes.because == ITSELF]
            assert self._first_failure_at is not None  # `_ended_badly` has the worker.
            self._judge_at = self._first_failure_at + (STOP_TIMEOUT_S if causes else _MOMENT_S)
            if time.monotonic() < self._judge_at:
                return None
        self._judge_at = None
        return (causes or self._ended_badly)[0]

    def _stop(self) -> None:
        if self._kill_at is not None:
            return
        now = time.monotonic()
        if self._end_requests:  # The user asked for the end: workers are already ending in their own way.
            self._kill_at = now + (_INTERRUPTED_TIMEOUT_S if self._end_signal == signal.SIGINT else STOP_TIMEOUT_S)
            return
        self._signal_all(signal.SIGTERM)
        self._kill_at = max((self._first_failure_at or now) + STOP_TIMEOUT_S, now + STOP_TIMEOUT_S - _MOMENT_S)

    def _signal_all(self, signum: signal.Signals) -> None:
        for worker in self._workers:
            worker.signal(signum)

    def _end(self, selector: selectors.BaseSelector) -> None:
        """Ends all processes that the workers left behind, and forwards the last output."""
        marks = {worker.pid: worker.mark for worker in self._workers if isinstance(worker, LocalWorker)}
        self._signal_all(signal.SIGTERM)
        signal_started(marks, signal.SIGTERM)
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        pipes = set(self._by_pipe)
        while (open_pipes := pipes & set(selector.get_map())) and time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                if key.fd in open_pipes:
                    self._read(selector, key.fd)
        self._signal_all(signal.SIGKILL)
        kill_started(marks)
        for worker in self._workers:
            worker.poll()
            worker.reap()

    def _result(self) -> int:
        stuck = [worker.name for worker in self._workers if worker.code is None]
        if stuck:
            self._report(f"{', '.join(stuck)} still running after SIGKILL, perhaps blocked in a device or file system")
        if self._broken_pipe:
            return 128 + signal.SIGPIPE
        if self._failed is not None:
            self._show_failure(self._failed)
        elif self._end_signal is not None and (self._ended_badly or not self._workers):
            self._report(with_checkpoint(f"ended by {self._end_signal.name}", self._workers))
            return 128 + self._end_signal
        return 0 if self._failed is None else self._failed.exit_code

    def _show_failure(self, worker: Worker) -> None:
        if self._end_requests:
            return
        self._show_start_up(worker)
        if len(self._workers) > 1 and not worker.traceback_is_shown:
            self._show_last_lines(worker)
        if len(self._workers) > 1 and any(worker.notes.saved for worker in self._workers):
            self._report(with_checkpoint("the job has failed", self._workers))

    def _show_last_lines(self, worker: Worker) -> None:
        last = [line.encode(errors="replace") for line in worker.notes.trace.splitlines()] or list(worker.last_lines)
        if last and self._console.is_in_view(last):
            return
        lines = "\n".join("  " + line.decode(errors="replace") for line in last)
        self._report(f"{worker.name} {worker.describe_end()}; its last lines:\n{lines or '  (none)'}")

    def _show_start_up(self, worker: Worker) -> None:
        """Shows the hidden lines of a failed worker, if one of them may have the cause."""
        if worker.start_up.lines and worker.may_need_start_up:
            lines = "\n".join("  " + line.decode(errors="replace") for line in worker.start_up.lines)
            self._report(f"{worker.name}: hidden start-up lines of TensorFlow:\n{lines}")

    def _report(self, text: str) -> None:
        if not self._broken_pipe:
            with contextlib.suppress(BrokenPipeError):
                self._console.message(text)


def check_thread(caller: str) -> None:
    """Refuses to start a job outside of the main thread.

    Args:
      caller: The function's name in the message.

    Raises:
      LaunchError: it runs in another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise LaunchError(f"{caller} must be called in the main thread, which receives the signals")


@contextlib.contextmanager
def _signals(selector: selectors.BaseSelector) -> Iterator[socket.socket]:
    """Turns the signals that the launcher handles into bytes of a socket, as long as the block runs."""
    ours, interpreters = socket.socketpair()
    for end in (ours, interpreters):
        end.setblocking(False)
    former_fd = signal.set_wakeup_fd(interpreters.fileno(), warn_on_full_buffer=False)
    former = {}
    for signum in _FORWARDED | {signal.SIGCHLD}:
        # A signal that was ignored at the start (nohup, a background job) stays ignored, for workers as well.
        if signum == signal.SIGCHLD or signal.getsignal(signum) != signal.SIG_IGN:
            former[signum] = signal.signal(signum, lambda signum, frame: None)
    selector.register(ours, selectors.EVENT_READ)
    try:
        yield ours
    finally:
        selector.unregister(ours)
        for signum, handler in former.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(former_fd)
        ours.close()
        interpreters.close()
