"""`lockstep timeline` on files that no rank has written: it prints a summary, or one line of error."""

# Promise of this file (command.md): `lockstep inspect`, `timeline` and `doctor` answer hostile files and variables with
# one line.

import json
import os
from xml.etree import ElementTree

import pytest

from lockstep._src.timeline import command
from lockstep.testing.mutations import feed, json_mutation, mutation
from lockstep.testing.tools import run_tool

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

_ESCAPES = "\x1b]0;title\x07\x1b[2J\u202e\nrank 9"


def _trace(rank, /, **about):
    head = {"format": 1, "rank": rank, "size": 2, "job": "aa", "process": 7, "host": f"h{rank}", "boot": f"B{rank}"}
    spans = [
        ("step", 0, "step", 100 * rank, 1000, {"step": 1}),
        ("step", 0, "step", 2000, 900, {"step": 2}),
        *(
            ("collective", 1, "allreduce grad", 50 * i, 20, {"number": i, "sent_bytes": 4, "received_bytes": 4})
            for i in range(3)
        ),
        ("wait", 1, f"wait for rank {1 - rank}", 50, 5, {}),
        ("lookup", 100, "lookup", 10, 5, {"table": "user", "ids": 10, "distinct_ids": 4}),
        ("keys", 101, "keys", 11, 5, {"table": "item", "keys": 9, "inserted_keys": 3}),
    ]
    rows = [
        {"ph": "M", "name": "lockstep", "tid": 0, "args": {**head, "unix_s": 100, **about}},
        {"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "collectives: ordered"}},
        *(
            {"ph": "X", "name": name, "cat": cat, "tid": tid, "ts": ts, "dur": dur, "args": {"wait_us": 1, **args}}
            for cat, tid, name, ts, dur, args in spans
        ),
        {"ph": "M", "name": "lockstep_end", "tid": 0, "args": {"events": 9, "dropped": 0, "full": False}},
    ]
    return ("[\n" + ",\n".join(json.dumps({"pid": rank, **row}) for row in rows) + "\n]\n").encode()


@pytest.fixture(name="read")
def _read(tmp_path, capsys):
    """Returns a function that gives the tool a trace of rank 0, and returns its error."""
    folder, svg = tmp_path / "traces", tmp_path / "steps.svg"
    folder.mkdir()
    (folder / "rank-1-7.json").write_bytes(_trace(1))

    def read(data):
        (folder / "rank-0-7.json").write_bytes(data)
        svg.unlink(missing_ok=True)
        error = run_tool(command.main, [str(folder), "-o", str(tmp_path / "all.json"), "--svg", str(svg)], capsys)
        if svg.exists():
            ElementTree.parse(svg)
        return error

    return read


@pytest.mark.parametrize("mutate", [mutation, json_mutation])
@pytest.mark.parametrize("inputs", [400, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_changed_trace_is_summarized_or_refused_in_one_line(read, mutate, inputs):
    errors = []
    assert read(_trace(0)) == ""
    feed("lockstep timeline", lambda data: errors.append(read(data)), [_trace(0)], (), inputs, mutate)
    assert all(error.startswith("lockstep timeline: ") for error in errors if error)
    assert {True, False} == {bool(error) for error in errors}


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"size": 10**12}, f"line 2 is damaged: rank is 0 and size is {10**12}, wanted rank < size <= 1048576"),
        ({"size": "2"}, "line 2 is damaged: size is '2', wanted an integer from 0 to 2^53"),
        ({"rank": 2}, "rank is 2 and size is 2"),
        ({"job": ["aa"]}, "job is ['aa'], wanted a text"),
        ({"unix_s": float("nan")}, "unix_s is nan, wanted an integer"),
    ],
    ids=str,
)
def test_a_head_that_no_rank_writes_is_refused(read, about, says):
    assert says in read(_trace(0, **about))


def test_names_with_escapes_are_shown_escaped(tmp_path, capsys):
    text = _trace(0, job=_ESCAPES, host=_ESCAPES, size=1 << 20).decode()
    for name in ("user", "allreduce grad"):
        text = text.replace(json.dumps(name), json.dumps(_ESCAPES))
    (tmp_path / "rank-0-7.json").write_text(text)
    assert command.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert r"\x1b]0;title\x07\x1b[2J\u202e\nrank 9" in shown and "no trace of rank 1 to 1048575" in shown
    assert not any(ord(one) < 32 and one != "\n" for one in shown)
    assert "--job" not in run_tool(command.main, [str(tmp_path), "--job", _ESCAPES + "?"], capsys)


def test_a_pipe_and_a_folder_are_no_traces(tmp_path, capsys):
    for make, says in ((os.mkfifo, "is not a regular file"), (os.mkdir, "Is a directory")):
        path = tmp_path / make.__name__
        path.mkdir()
        make(path / "rank-0-1.json")
        assert run_tool(command.main, [str(path)], capsys) == f"lockstep timeline: {path}/rank-0-1.json: {says}"


@pytest.mark.parametrize("steps", ["²", "1:²", "9" * 5000, "-1", "1:2:3"])
def test_steps_are_decimal_numbers(tmp_path, capsys, steps):
    with pytest.raises(SystemExit):
        command.main([str(tmp_path), "--svg", "x.svg", f"--steps={steps}"])
    assert "wanted two steps like 20:22" in capsys.readouterr().err
