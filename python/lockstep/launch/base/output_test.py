import os
import pty
import threading
import time
import tty
from collections import deque

import pytest

from lockstep.launch.base.output import PROGRESS_INTERVAL_S, Console, Stream, streams_of

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


class _Screen:
    """A console whose stdout and stderr are a pipe, or a terminal, with a clock of its own."""

    def __init__(self, terminal: bool):
        self._reader, writer = pty.openpty() if terminal else os.pipe()
        if terminal:
            tty.setraw(writer)
        self._fds = (self._reader, writer)
        self.now = 100.0
        self.console = Console(writer, writer, clock=lambda: self.now)
        self.history = deque()

    def stream(self, rank=0, shows_progress=None) -> Stream:
        shows_progress = rank == 0 if shows_progress is None else shows_progress
        return Stream(self.console, self.console.stdout, b"[%d] " % rank, shows_progress, self.history)

    def written(self) -> str:
        os.set_blocking(self._reader, False)
        written = b""
        try:
            while True:
                written += os.read(self._reader, 1 << 20)
        except BlockingIOError:
            return written.decode()

    def close(self):
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def pipe():
    screen = _Screen(terminal=False)
    yield screen
    screen.close()


@pytest.fixture
def terminal():
    screen = _Screen(terminal=True)
    yield screen
    screen.close()


def test_every_line_gets_the_rank_however_it_arrives(pipe):
    stream = pipe.stream(3)
    for chunk in (b"on", b"e\ntwo\n\nth", b"ree"):
        stream.feed(chunk)
    assert pipe.written() == "[3] one\n[3] two\n[3] \n"
    stream.finish()
    assert pipe.written() == "[3] three\n"
    assert list(pipe.history) == [b"one", b"two", b"", b"three"]


def test_bytes_that_are_no_text_pass_unchanged(pipe):
    os.set_blocking(pipe._reader, False)
    pipe.stream().feed(b"\xff\xfe\n")
    assert os.read(pipe._reader, 100) == b"[0] \xff\xfe\n"


def test_lines_of_several_ranks_are_never_mixed(pipe):
    first, second = pipe.stream(0), pipe.stream(1)
    first.feed(b"fir")
    second.feed(b"second\n")
    first.feed(b"st\n")
    assert pipe.written() == "[1] second\n[0] first\n"


def test_ends_of_line_of_another_system_are_no_progress(pipe):
    stream = pipe.stream()
    stream.feed(b"one\r\ntwo\r\n")
    assert pipe.written() == "[0] one\n[0] two\n"
    assert list(pipe.history) == [b"one", b"two"]


def test_in_a_file_progress_is_a_line_now_and_then_and_its_last_state(pipe):
    stream = pipe.stream()
    for step in range(25):
        pipe.now += 1
        stream.feed(b"\r%d %%" % step)
    stream.feed(b"\rdone\n")
    lines = pipe.written().splitlines()
    assert lines[-1] == "[0] done"
    assert lines[:-1] == [f"[0] {step} %" for step in range(0, 25, int(PROGRESS_INTERVAL_S))]


def test_progress_of_other_ranks_is_its_last_state(pipe):
    stream = pipe.stream(1)
    stream.feed(b"\r1 %\r50 %")
    stream.feed(b"\r100 %\n")
    assert pipe.written() == "[1] 100 %\n"


def test_progress_without_an_end_shows_its_last_state_at_the_end(pipe):
    stream = pipe.stream(1)
    stream.feed(b"\r1 %\r50 %")
    stream.finish()
    assert pipe.written() == "[1] 50 %\n"


def test_on_a_terminal_other_lines_scroll_above_the_bar(terminal):
    bar, other = terminal.stream(0), terminal.stream(1)
    bar.feed(b"\r10 %")
    other.feed(b"hello\n")
    bar.feed(b"\r20 %")
    bar.feed(b"\r30 %\n")
    other.feed(b"bye\n")
    erase = "\r\x1b[K"
    assert terminal.written() == (f"{erase}[0] 10 %{erase}[1] hello\n[0] 10 %{erase}[0] 20 %{erase}[0] 30 %\n[1] bye\n")


def test_a_bar_that_is_erased_leaves_the_screen(terminal):
    bar = terminal.stream(0)
    bar.feed(b"\r10 %\r     \r")
    bar.feed(b"\r10 %")
    bar.feed(b"\r     \r")
    bar.finish()
    assert terminal.written() == "\r\x1b[K[0] 10 %\r\x1b[K"
    assert not terminal.history


def test_lines_may_begin_with_the_time(tmp_path):
    with open(tmp_path / "out", "w+b") as file:
        console = Console(file.fileno(), file.fileno(), timestamps=True)
        stream = Stream(console, file.fileno(), b"[3] ", True, deque())
        stream.feed(b"one\ntwo\n\r10 %")
        console.message("ours")
        file.seek(0)
        lines = file.read().decode().splitlines()
    stamp = len("2026-11-21 20:47:36 ")
    assert [line[stamp:] for line in lines] == ["[3] one", "[3] two", "[3] 10 %", "[lockstep] ours"]
    for line in lines:
        assert abs(time.mktime(time.strptime(line[:stamp], "%Y-%m-%d %H:%M:%S ")) - time.time()) < 60


def test_an_endless_line_is_handed_on_in_pieces(tmp_path):
    with open(tmp_path / "out", "w+b") as file:
        stream = Stream(Console(file.fileno(), file.fileno()), file.fileno(), b"", True, deque())
        for _ in range(40):
            stream.feed(b"x" * 4096)
        assert os.path.getsize(file.name) >= 40 * 4096 - (1 << 16)
        stream.finish()
        file.seek(0)
        assert file.read().replace(b"\n", b"") == b"x" * 40 * 4096


def test_what_cannot_be_written_is_lost_and_said_once(pipe):
    full = os.open("/dev/full", os.O_WRONLY)
    console = Console(full, pipe.console.stderr)
    for _ in range(3):
        console.line(full, b"lost")
    os.close(full)
    said = "stdout: No space left on device; output to it is lost; the job continues"
    assert pipe.written() == f"[lockstep] {said}\n"


def test_lines_are_whole_though_the_file_does_not_block(pipe):
    os.set_blocking(pipe.console.stdout, False)
    line, read = b"x" * (1 << 20), []

    def take():
        while sum(map(len, read)) <= len(line):
            read.append(os.read(pipe._reader, 1 << 16))

    reader = threading.Thread(target=take)
    reader.start()
    pipe.console.line(pipe.console.stdout, line)
    reader.join()
    assert b"".join(read) == line + b"\n"


def test_a_terminal_obeys_nothing_that_another_host_sends_but_colours(pipe):
    stream = Stream(pipe.console, pipe.console.stdout, b"[1] ", True, pipe.history, is_remote=True)
    stream.feed(b"\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J\t\xc3\xa9\xc2\x9b2J\x00\n")
    pipe.console.message("host a: \x1b[31mred\x1b[0m\x07")
    assert pipe.written() == (
        "[1] \x1b[31mred\x1b[0m \\x1b]0;title\\x07\\x1b[2J\t\xe9\\x9b2J\\x00\n"
        "[lockstep] host a: \\x1b[31mred\\x1b[0m\\x07\n"
    )


def test_a_file_gets_text_and_no_control_characters(tmp_path):
    with open(tmp_path / "out", "w+b") as file:
        console = Console(file.fileno(), file.fileno())
        stream = Stream(console, file.fileno(), b"[0] ", True, deque())
        stream.feed(
            b"\x1b[1;32mgreen\x1b[0m \x1b]0;title\x07\xc3\xa9\tbell\x07 ab\x08\x08\n\r10 %\r\x1b[2K\x1b[31m99 %\n"
        )
        file.seek(0)
        assert file.read().decode() == "[0] green é\tbell\\x07 ab\n[0] 99 %\n"


def test_hidden_ranks_are_kept_for_the_message_of_a_failure_and_bars_are_those_of_the_first_shown_rank(tmp_path):
    with open(tmp_path / "out", "w+b") as file:
        console = Console(file.fileno(), file.fileno(), ranks={2, 1}, clock=lambda: 100.0)
        history = {rank: deque() for rank in range(3)}
        for rank in history:
            stdout, stderr = streams_of(rank, console, history[rank])
            stdout.feed(b"\r1 %")
            stdout.feed(b"\r2 %\n")
            stderr.feed(b"error\n")
        console.message("ours")
        file.seek(0)
        shown = file.read().decode().splitlines()
    assert shown == ["[1] 1 %", "[1] 2 %", "[1] error", "[2] 2 %", "[2] error", "[lockstep] ours"]
    assert all(list(lines) == [b"2 %", b"error"] for lines in history.values())


def _keras(step: int, steps: int = 30) -> str:
    done = 20 * step // steps
    return f"{step}/{steps} \x1b[32m{'━' * done}\x1b[0m\x1b[37m{'━' * (20 - done)}\x1b[0m 0s 4ms/step"


def test_keras_lines_of_a_bar_are_its_states(pipe):
    stream = pipe.stream()
    states = [_keras(step) for step in range(1, 31)]
    for line in ("Epoch 1/2", *states, "Epoch 2/2", *states[:3], *states[:2], "done"):
        pipe.now += 1
        stream.feed(line.encode() + b"\n")
    shown = [line.removeprefix("[0] ") for line in pipe.written().splitlines()]
    # Each bar has a line every ten seconds, and its last state.
    wanted = ["Epoch 1/2", *(states[i] for i in (0, 10, 20, 29)), "Epoch 2/2", states[0], states[2], states[1], "done"]
    assert shown == wanted
    assert list(pipe.history) == [line.encode() for line in (*("Epoch 1/2", states[29], "Epoch 2/2"), *wanted[-3:])]


def test_other_ranks_show_the_last_state_of_keras_bars(pipe):
    stream = pipe.stream(1)
    for step in (1, 2, 3):
        stream.feed(_keras(step).encode() + b"\n")
    assert pipe.written() == ""
    stream.finish()
    assert pipe.written() == f"[1] {_keras(3)}\n"


def test_lines_are_in_view_until_a_screen_of_others_has_followed(terminal):
    stream = terminal.stream()
    stream.feed(b"one\n\x1b[31mtwo\x1b[0m\n")
    assert terminal.console.is_in_view([b"two", b"one"]), "colours do not matter"
    assert not terminal.console.is_in_view([b"one", b"three"])
    for number in range(23):
        stream.feed(b"%d\n" % number)
    assert not terminal.console.is_in_view([b"one"])
    assert terminal.console.is_in_view([b"two"])
