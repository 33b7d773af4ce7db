# Promise of this file (launching.md): a worker's reports reach the launcher after a failure and Ctrl-C.

import json
import os

import pytest

from lockstep.launch.base import notes
from lockstep.launch.base.notes import ITSELF, PEER, Notes, Saved

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.fixture
def pipe(monkeypatch):
    read, write = notes.open_pipe()
    monkeypatch.setenv(notes.VARIABLE, notes.name_of(write))
    yield read, write
    for descriptor in (read, write):
        os.close(descriptor)


def test_notes_arrive_however_they_are_cut(pipe):
    assert notes.say({"is": "saved", "path": "/c/model.ckpt-7", "step": 7, "resumes": True})
    assert notes.say({"is": "failed", "because": PEER, "error": "a\nb", "trace": "lines"})
    data = os.read(pipe[0], 1 << 16)
    heard = []
    noted = Notes(lambda one: heard.append((one.saved, one.because)))
    for at in range(0, len(data), 3):
        noted.feed(data[at : at + 3])
    saved = (Saved("/c/model.ckpt-7", None, "step 7", resumes=True, data=False),)
    assert (noted.saved, noted.because, noted.error, noted.trace) == (saved, PEER, "a b", "lines")
    assert heard == [(saved, ""), (saved, PEER)]


def _noted(pipe):
    noted = Notes()
    noted.feed(os.read(pipe[0], 1 << 16))
    return noted


def test_checkpoints_are_noted_with_the_file_that_stands_for_them(pipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notes.say_saved("run/model.ckpt-5", suffix=".index", step=5, resumes=True, data=True)
    notes.say_saved("gs://run/a.keras")
    notes.say_saved(tmp_path / "backup", epochs=1, resumes=True)
    notes.say_saved("run/model.ckpt-5", suffix=".index", step=5, resumes=True)
    assert _noted(pipe).saved == (
        Saved("gs://run/a.keras", None, "", resumes=False, data=False),
        Saved(f"{tmp_path}/backup", f"{tmp_path}/backup", "1 epoch", resumes=True, data=False),
        Saved("run/model.ckpt-5", f"{tmp_path}/run/model.ckpt-5.index", "step 5", resumes=True, data=False),
    )


def test_the_newest_checkpoints_are_kept(pipe):
    for number in range(40):
        notes.say_saved(f"/c/{number}")
    kept = [saved.path for saved in _noted(pipe).saved]
    assert kept == [f"/c/{number}" for number in range(24, 40)]


@pytest.mark.parametrize(
    ("told", "has_exchanged"),
    [
        ([], False),
        ([{"is": "joined"}], True),
        ([{"is": "joined"}, {"is": "left", "collectives": 3}], True),
        ([{"is": "joined"}, {"is": "left", "collectives": 0}], False),
        ([{"is": "joined"}, {"is": "left", "collectives": 0}, {"is": "joined"}], True),
    ],
)
def test_a_worker_has_exchanged_unless_it_leaves_without_an_exchange(pipe, told, has_exchanged):
    notes.say({"is": "saved", "path": "/c"})
    for note in told:
        assert notes.say(note)
    assert _noted(pipe).has_exchanged == has_exchanged


@pytest.mark.parametrize(
    "line", [b"{", b"[1]", b"7", b'{"is": "failed", "because": "sun"}', b'{"is": "saved", "path": 3}', b"x" * (1 << 20)]
)
def test_what_is_no_note_is_left_out(line):
    noted = Notes()
    noted.feed(line + b"\n" + json.dumps({"is": "failed", "because": ITSELF}).encode() + b"\n" + line)
    assert (noted.because, noted.error, noted.trace, noted.saved) == (ITSELF, "", "", ())
    assert len(noted._rest) <= 60 << 10


def test_another_file_under_the_pipes_number_gets_no_notes(pipe, tmp_path):
    with open(tmp_path / "theirs", "wb") as theirs:
        os.dup2(theirs.fileno(), pipe[1])
        assert not notes.say({"is": "failed", "because": ITSELF})
    assert (tmp_path / "theirs").read_bytes() == b""


def test_the_first_reason_of_a_failure_stays():
    noted = Notes()
    for because, same in ((PEER, ""), (ITSELF, "x")):
        noted.feed(json.dumps({"is": "failed", "because": because, "same": same}).encode() + b"\n")
    assert (noted.because, noted.same) == (PEER, "")


def test_a_note_that_is_longer_than_the_pipe_is_not_sent_and_the_next_one_arrives(pipe):
    assert not notes.say({"is": "failed", "because": ITSELF, "trace": "x" * (60 << 10)})
    assert notes.say({"is": "failed", "because": ITSELF, "trace": "x" * (59 << 10), "same": "1", "start_up": True})
    os.write(pipe[1], b'{"is": "fai')  # a note of which the pipe took a part
    assert notes.say({"is": "saved", "path": "/c"})
    noted = Notes()
    noted.feed(os.read(pipe[0], 1 << 16))
    assert (len(noted.trace), noted.same, noted.start_up) == (59 << 10, "1", True)
    assert [saved.path for saved in noted.saved] == ["/c"]


def test_nobody_waits_where_a_note_finds_no_place(pipe):
    sent = 0
    while notes.say({"is": "saved", "path": "x" * 1000}):
        sent += 1
    assert sent > 10


@pytest.mark.parametrize("value", ["", "x", "7", "-1:3", "9999:1"])
def test_without_a_launcher_there_are_no_notes(monkeypatch, value):
    monkeypatch.setenv(notes.VARIABLE, value)
    assert not notes.say({"is": "failed", "because": ITSELF})
