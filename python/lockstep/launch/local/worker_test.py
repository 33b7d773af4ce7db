"""The launcher's view of a worker: how ends are reported, and that output is forwarded, kept and not mixed up."""

import json
import signal

import pytest

from lockstep.launch.base import notes
from lockstep.launch.base.output import Console
from lockstep.launch.local.output_folder import open_copy
from lockstep.launch.local.process import command_starter
from lockstep.launch.local.worker import LAST_LINES, LocalWorker, Worker, end_in_words
from lockstep.testing.launching import wait_for

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self):
        self.text, self.has_ended = b"", False

    def feed(self, chunk):
        self.text += chunk

    def finish(self):
        self.has_ended = True


@pytest.fixture
def start(tmp_path):
    """Yields a function that starts a worker which runs shell code, and connects it with sinks that keep all."""
    started = []

    def start_it(code: str, copies=None, rank=3):
        worker = LocalWorker(command_starter(["sh", "-c", code])({"PATH": "/usr/bin:/bin"}, ()), rank, copies)
        started.append(worker)
        worker.show(Kept(), Kept(), worker.notes)
        return worker

    yield start_it
    for worker in started:
        worker.signal(signal.SIGKILL)
        if worker.code is None:
            wait_for(worker.poll, "a worker to end")
        worker.reap()


def _read_all(worker):
    """Reads a worker's pipes up to their ends."""
    for fd in worker.streams:
        wait_for(lambda fd=fd: not worker.read(fd), "the end of a pipe")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "failed with exit code 0"),
        (7, "failed with exit code 7"),
        (-9, "was killed by SIGKILL"),
        (-34, "was killed by SIGRTMIN"),
        (-40, "was killed by SIGRTMIN+6"),
        (-64, "was killed by SIGRTMAX"),
    ],
)
def test_an_end_has_words(code, words):
    assert end_in_words(code) == words


@pytest.mark.parametrize(
    ("code", "because", "exit_code", "words"),
    [
        (0, "", 0, "failed with exit code 0"),
        (3, "", 3, "failed with exit code 3"),
        (-signal.SIGSEGV, "", 139, "was killed by SIGSEGV"),
        (-40, "", 168, "was killed by SIGRTMIN+6"),
        (-signal.SIGHUP, "", 129, "was killed by SIGHUP"),
        (130, "", 130, "failed with exit code 130"),
        # It was ended while it failed by itself.
        (-signal.SIGTERM, notes.ITSELF, 1, "failed with exit code 1"),
        (None, notes.ITSELF, 1, "failed with exit code 1"),
        (5, notes.ITSELF, 5, "failed with exit code 5"),
        (-signal.SIGTERM, notes.PEER, 143, "was killed by SIGTERM"),
    ],
)
def test_the_exit_code_is_a_shells_and_1_for_a_worker_that_was_ended_while_it_failed(code, because, exit_code, words):
    worker = Worker(2, 77)
    worker.code, worker.notes.because = code, because
    assert (worker.exit_code, worker.describe_end()) == (exit_code, words)
    assert worker.is_secondary == (because == notes.PEER)
    assert (worker.name, worker.label) == ("rank 2", "rank 2 (pid 77)")


def test_a_worker_that_runs_has_no_final_code():
    with pytest.raises(AssertionError, match="rank 2 still runs"):
        Worker(2, 77).final_code  # noqa: B018


def test_a_killed_worker_comes_before_those_that_failed_because_of_it():
    killed, failed = Worker(0, 1), Worker(1, 2)
    killed.code, failed.code = -9, 1
    assert min((failed, killed), key=lambda worker: worker.urgency) is killed


def test_its_output_goes_to_the_sink_of_each_stream_and_its_end_is_told_once(start):
    worker = start("echo out; echo err >&2; exit 5")
    _read_all(worker)
    stdout, stderr, _ = worker.sinks
    assert (stdout.text, stderr.text, stdout.has_ended) == (b"out\n", b"err\n", True)
    wait_for(worker.poll, "a worker to end")
    assert (worker.code, worker.poll()) == (5, False)


def test_a_signal_gives_a_negative_code(start):
    worker = start("exec sleep 600")
    assert not worker.poll()
    worker.signal(signal.SIGTERM)
    wait_for(worker.poll, "a worker to end")
    assert worker.code == -signal.SIGTERM


def test_one_call_reads_a_part_so_that_a_worker_that_writes_without_end_leaves_time_for_others(start):
    worker = start("exec cat /dev/zero")
    wait_for(lambda: worker.read(next(iter(worker.streams))) and worker.sinks[0].text, "output")
    before = len(worker.sinks[0].text)
    worker.read(next(iter(worker.streams)))
    assert len(worker.sinks[0].text) - before <= 1 << 20


def _failing(note: dict) -> str:
    """Returns a command that writes to its outputs, and sends a note twice."""
    text = json.dumps({"is": "failed", **note})
    return f"echo out; printf begun >&2; printf '%s\\n' '{text}' '{text}' > /proc/self/fd/${{LOCKSTEP_NOTES%%:*}}"


@pytest.mark.parametrize(("because", "shown"), [(notes.PEER, b"in short"), (notes.ITSELF, b"at length")])
def test_a_traceback_is_kept_in_files_and_shown_if_the_error_is_the_programs_own(start, tmp_path, because, shown):
    """The launcher shows one line of another error: the traceback follows in its last lines if nothing else does."""
    code = _failing({"because": because, "error": "in short", "trace": "at length\n"})
    with open(tmp_path / "shown", "wb") as file:
        worker = start(code, open_copy(str(tmp_path), "rank.3", Console(file.fileno(), file.fileno())))
        _read_all(worker)
    assert worker.sinks[1].text == b"begun" + shown + b"\n"
    assert (tmp_path / "rank.3/stdout").read_text() == "out\n"
    assert (tmp_path / "rank.3/stderr").read_text() == "begunat length\n"
    assert (worker.notes.because, worker.notes.trace) == (because, "at length\n")


@pytest.mark.parametrize(
    ("ranks", "texts", "shown"),
    [
        (None, "aa", [b"trace a", b"the same error as rank 0"]),
        (None, "ab", [b"trace a", b"trace b"]),
        # The output of rank 0 is hidden, so its traceback is not on the console.
        ({1}, "aa", [b"trace a", b"trace a"]),
    ],
    ids=["same", "others", "hidden"],
)
def test_each_error_is_one_traceback_on_the_console(start, tmp_path, ranks, texts, shown):
    with open(tmp_path / "shown", "wb") as file:
        console = Console(file.fileno(), file.fileno(), ranks=ranks)
        for rank, (text, wanted) in enumerate(zip(texts, shown, strict=True)):
            note = {"because": notes.ITSELF, "trace": f"trace {text}", "same": text}
            worker = start(_failing(note), rank=rank)
            worker.console = console
            _read_all(worker)
            assert worker.sinks[1].text == b"begun" + wanted + b"\n"
            assert worker.traceback_is_shown == (ranks is None or rank in ranks)


@pytest.mark.parametrize(
    ("because", "start_up", "needs"),
    [("", False, True), (notes.ITSELF, False, False), (notes.ITSELF, True, True), (notes.PEER, False, False)],
)
def test_start_up_lines_may_explain_an_end_that_nothing_else_explains(because, start_up, needs):
    worker = Worker(0, 1)
    worker.notes.because, worker.notes.start_up = because, start_up
    assert worker.may_need_start_up == needs


def test_the_newest_lines_are_kept_for_the_message_of_a_failure():
    worker = Worker(0, 1)
    worker.last_lines.extend(b"%d" % i for i in range(LAST_LINES + 5))
    assert list(worker.last_lines) == [b"%d" % i for i in range(5, LAST_LINES + 5)]


def test_a_worker_that_has_ended_keeps_its_number_until_it_is_reaped(start):
    worker = start("exit 0")
    wait_for(worker.poll, "a worker to end")
    worker.signal(signal.SIGKILL)  # It reaches nobody.
    with open(f"/proc/{worker.pid}/stat") as stat:
        assert stat.read().rpartition(")")[2].split()[0] == "Z"
