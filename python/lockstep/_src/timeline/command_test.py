import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lockstep._src.timeline import command, merging, summary, traces

_OFFSET_US = 5e6  # the clock of host b is ahead of host a's clock


def _span(cat: str, row: int, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "tid": row, "ts": ts, "dur": dur, "args": args}


def _collective(number: int, ts: float, dur: float, wait_us: float = 0.0, **args: Any) -> dict[str, Any]:
    given = {"number": number, "sent_bytes": 400, "received_bytes": 300, "wait_us": wait_us, **args}
    return _span("collective", 1, "allreduce grad", ts, dur, **given)


def _write(folder: Path, rank: int, events: list[dict[str, Any]], **about: Any) -> Path:
    """Writes a trace as ranks do; `about` replaces parts of the first event. `end=False`: without the end."""
    end = about.pop("end", True)
    head = {"format": 1, "rank": rank, "size": 2, "job": "aa", "process": 7, "host": "a", "boot": "A", "unix_s": 100}
    rows = [
        {"ph": "M", "name": "lockstep", "tid": 0, "args": {**head, **about}},
        {"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "collectives: ordered"}},
        *events,
    ]
    if end:
        rows.append({"ph": "M", "name": "lockstep_end", "tid": 0, "args": {"events": 1, "dropped": 0, "full": False}})
    text = "[\n" + ",\n".join(json.dumps({"pid": rank, **row}) for row in rows)
    path = folder / f"rank-{rank}-{about.get('process', 7)}.json"
    path.write_text(text + ("\n]\n" if end else ",\n"))
    return path


def _job(folder: Path) -> None:
    """Writes a job of two ranks of one host: rank 1 comes 30 us late to the second exchange."""
    _write(
        folder,
        0,
        [
            _span("step", 0, "step", 1000, 100, step=2),
            _collective(1, 1010, 10),
            _collective(2, 1050, 40, wait_us=30, late=1),
            _span("wait", 1, "wait for rank 1", 1050, 30),
            _span("lookup", 100, "lookup", 1001, 5, table="user", ids=10, distinct_ids=4),
            _span("lookup", 100, "lookup", 1101, 5, table="user", ids=30, distinct_ids=16),
        ],
    )
    _write(
        folder,
        1,
        [
            _span("step", 0, "step", 1000, 100, step=2),
            _collective(1, 1009, 11),
            _collective(2, 1080, 10),
            _span("keys", 101, "keys", 1001, 5, table="item", keys=9, inserted_keys=3),
        ],
    )


def _summary(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert command.main([str(folder), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_summary_has_times_bytes_and_who_was_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _job(tmp_path)
    found = _summary(tmp_path, capsys)
    zero, one = found["ranks"]
    assert (zero["steps"], zero["ms"], zero["exchange_ms"], zero["compute_ms"]) == pytest.approx((1, 0.1, 0.05, 0.05))
    assert (zero["wait_ms"], zero["sent_bytes"], zero["received_bytes"]) == pytest.approx((0.03, 800, 600))
    assert (zero["last"], one["last"]) == (1, 1)
    assert (zero["late_ms"], one["late_ms"]) == pytest.approx((0.001, 0.03))
    assert found["tables"] == [
        {"table": "item", "lookups": 0, "ids": 0, "distinct_ids": 0, "keys": 9, "inserted_keys": 3},
        {"table": "user", "lookups": 2, "ids": 40, "distinct_ids": 20, "keys": 0, "inserted_keys": 0},
    ]
    (grad,) = found["exchanges"]
    assert (grad["name"], grad["count"], grad["sent_bytes"]) == ("allreduce grad", 2, 1600)
    assert (grad["transfer_ms"], grad["longest_ms"], grad["wait_ms"]) == pytest.approx((0.02, 0.01, 0.03))
    assert found["missing_ranks"] == []


def test_the_lines_name_ranks_tables_and_exchanges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _job(tmp_path)
    assert command.main([str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^0 +1 +0\.1 +0\.1 +0\.0 +1 +0\.0 +800 B +600 B$", text, re.MULTILINE)
    assert re.search(r"^user +2 +40 +20 +0\.500 +0$", text, re.MULTILINE)
    assert re.search(r"^allreduce grad +2 ", text, re.MULTILINE)


def test_the_merged_trace_has_all_ranks_on_one_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _job(tmp_path)
    _summary(tmp_path, capsys, "-o", str(tmp_path / "merged.json"))
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert min(event["ts"] for event in events if "ts" in event) == 0
    begins = {event["pid"]: event["ts"] for event in events if event.get("args", {}).get("number") == 2}
    assert begins == {0: 50, 1: 80}


def test_clocks_of_hosts_are_aligned_by_exchanges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Exchange 2 takes 8 us on both ranks: so the clocks are known within 4 us.
    _write(tmp_path, 0, [_collective(1, 1000, 500), _collective(2, 2000, 8)])
    late = [_collective(1, 1400 + _OFFSET_US, 100), _collective(2, 2000 + _OFFSET_US, 8)]
    _write(tmp_path, 1, late, host="b", boot="B")
    found = _summary(tmp_path, capsys, "-o", str(tmp_path / "merged.json"))
    assert found["clocks"] == {"b": pytest.approx(8)}
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    begins = {event["pid"]: event["ts"] for event in events if event.get("args", {}).get("number") == 1}
    assert begins[1] - begins[0] == pytest.approx(400, abs=8)
    assert found["ranks"][1]["last"] >= 1


def test_clocks_that_drift_are_followed() -> None:
    # Host b's clock gains 100 us in each second.
    def times(second: int) -> float:
        return second * 1e6 * (1 + 1e-4) + _OFFSET_US

    here = [_collective(i, i * 1e6, 10) for i in range(100)]
    there = [_collective(i, times(i), 10) for i in range(100)]
    lanes = {"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "collectives: ordered"}}
    both = [
        traces.Trace("", rank, 2, "aa", host, host, 0, [lanes, *events], True, 0, False)
        for rank, host, events in ((0, "a", here), (1, "b", there))
    ]
    merging.align(both)
    # Inside of the first and last window, the clock is not extrapolated.
    for one in merging.exchanges(both)[10:90]:
        assert abs(one.begin[0] - one.begin[1]) < 100


def test_a_rank_that_was_killed_leaves_a_readable_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _job(tmp_path)
    path = _write(tmp_path, 1, [_collective(1, 1009, 11)], end=False)
    whole = path.read_text()
    for cut in range(len(whole) - 60, len(whole)):
        path.write_text(whole[:cut])
        found = _summary(tmp_path, capsys)
        assert found["ranks"][1]["ended"] is False
    assert command.main([str(tmp_path)]) == 0
    assert "the trace of rank 1 has no end" in capsys.readouterr().out


def test_the_last_job_of_a_folder_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _job(tmp_path)
    _write(tmp_path, 0, [_collective(1, 5, 5)], process=8, job="bb", unix_s=200, size=1)
    assert _summary(tmp_path, capsys)["job"] == "bb"
    assert _summary(tmp_path, capsys, "--job", "aa")["size"] == 2
    assert command.main([str(tmp_path)]) == 0
    assert "2 files of earlier jobs" in capsys.readouterr().out
    assert command.main([str(tmp_path), "--job", "cc"]) == 1
    assert "has no job cc; it has aa, bb" in capsys.readouterr().err


def test_a_missing_rank_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path, 0, [_collective(1, 5, 5)])
    assert command.main([str(tmp_path)]) == 0
    assert "no trace of rank 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no file rank-*.json; ranks write them with LOCKSTEP_TIMELINE="),
        ("", "is not a trace of a rank: its first event is not named 'lockstep'"),
        ('[\n{"ph":"B","name":"x","args":{}}\n]\n', "is not a trace of a rank"),
        (b"\xff\xfe\x00", "is not a trace of a rank"),
        (
            '[\n{"name":"lockstep","args":{"format":2}}\n]\n',
            "has format 2, wanted 1: written by another version",
        ),
    ],
)
def test_what_is_no_trace_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "rank-0-1.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert command.main([str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


def test_damage_in_the_middle_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _job(tmp_path)
    path = tmp_path / "rank-0-7.json"
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:20]
    path.write_text("\n".join(lines))
    assert command.main([str(tmp_path)]) == 1
    assert f"{path}: line 4 is damaged" in capsys.readouterr().err


def test_a_missing_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(tmp_path / "none")]) == 1
    assert "none: No such file or directory; wanted a folder of traces" in capsys.readouterr().err


def test_the_picture_has_a_box_for_each_event_of_the_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _job(tmp_path)
    _summary(tmp_path, capsys, "--svg", str(tmp_path / "x.svg"), "--steps", "2:2")
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    boxes = [one for one in root.iter("{http://www.w3.org/2000/svg}rect") if len(one)]
    kinds = sorted(one.get("class") or "" for one in boxes)
    # The second lookup of rank 0 begins after the step.
    assert kinds == ["collective"] * 4 + ["keys", "lookup", "step", "step", "wait"]
    assert "wait for rank 1" in (tmp_path / "x.svg").read_text()
    assert command.main([str(tmp_path), "--svg", str(tmp_path / "x.svg"), "--steps", "3:4"]) == 1
    assert "has no step 3, wanted 2 to 2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main([str(tmp_path), "--svg", "x", "--steps", "two"])
    assert "--steps: got 'two', wanted two steps like 20:22" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _job(tmp_path)
    assert command.main([str(tmp_path), "-o", str(tmp_path / "none" / "x.json")]) == 1
    assert "x.json: No such file or directory" in capsys.readouterr().err


def test_a_file_keeps_its_link_and_its_mode_and_a_device_is_written_directly(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    _job(tmp_path / "job")
    target, link = tmp_path / "x.json", tmp_path / "link.json"
    target.write_text("before")
    target.chmod(0o600)
    link.symlink_to(target)
    assert command.main([str(tmp_path / "job"), "-o", str(link)]) == 0
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o600
    assert json.loads(target.read_text())
    assert sorted(os.listdir(tmp_path)) == ["job", "link.json", "x.json"]
    assert command.main([str(tmp_path / "job"), "-o", "/dev/null"]) == 0
    assert not os.path.isfile("/dev/null")


def test_without_steps_the_summary_comes_before_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        _write(tmp_path, rank, [_collective(1, 1000, 10)])
    assert command.main([str(tmp_path), "--svg", str(tmp_path / "steps.svg")]) == 1
    shown = capsys.readouterr()
    assert re.search(r"^allreduce grad +1 ", shown.out, re.MULTILINE)
    assert "has no steps" in shown.err and "call lockstep.end_step() after each step" in shown.err
    assert not (tmp_path / "steps.svg").exists()


def test_long_names_of_exchanges_stay_apart() -> None:
    scope = "alltoall gradients/embedding_lookup/LockstepCombine/" + 30 * "deeper/"
    names = [f"{scope}{end}" for end in ("user", "item", "item")] + ["allreduce grad", f"{scope}user{40 * 'x'}/end"]
    names += [f"{scope}{middle}{60 * 'y'}" for middle in "ab"]
    shown = summary._shortened(names)
    assert len(set(shown)) == len(set(names)) and shown[1] == shown[2] and shown[3] == "allreduce grad"
    assert (
        shown[0].startswith("alltoall gradients/")
        and shown[0].endswith("/user")
        and len(shown[0]) == summary._NAME_CHARACTERS
    )
    joined = ["alltoall a/and_1_more/360198049b5feb77", "alltoall a/and_1_more/d1a36782e96850eb", "alltoall b"]
    assert summary._shortened(joined) == joined and summary._shortened(joined[1:]) == [
        "alltoall a/and_1_more",
        "alltoall b",
    ]
    for name, text in zip(names, shown, strict=True):
        begin, _, end = text.partition("...")
        assert name.startswith(begin) and name.endswith(end)
