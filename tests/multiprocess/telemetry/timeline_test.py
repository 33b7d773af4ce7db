"""The timeline of whole jobs: every rank records what it did, in both lanes, and `lockstep timeline` reads it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep import command
from lockstep._src.timeline import merging, traces
from lockstep.testing.launching import finish, launchers

DEADLINE_S = 500
LATE_S = 1.0  # so long that a busy machine does not matter

ORDERED = """
import os, signal, sys, time
import numpy as np
import tensorflow as tf
import lockstep

tf1 = tf.compat.v1
rank = lockstep.rank()
with tf.Graph().as_default(), lockstep.scope():
  with lockstep.embedding_scope():
    table = tf1.get_variable("user", [100, 4])
  ids = tf1.placeholder(tf.int64, [None])
  loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids))
  step = tf1.train.get_or_create_global_step()
  train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
  total = lockstep.allreduce(tf.zeros([1000]), name="thousand")
  with tf1.train.MonitoredTrainingSession() as session:
    for n in range(6):
      if n == 3 and rank == 1:
        time.sleep(float(sys.argv[1]))
      if n == 5 and rank == 1 and "kill" in sys.argv:
        time.sleep(1)  # until the writer has written
        os.kill(os.getpid(), signal.SIGKILL)
      session.run([train_op, total], {ids: np.random.default_rng([rank, n]).integers(0, 100, 50)})
"""

NAMED = """
import sys, time
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
for n in range(4):
  if n == 2 and hvd.rank() == 1:
    time.sleep(float(sys.argv[1]))
  hvd.allreduce(tf.fill([1000], 1.0), name=f"sum_{n}", op=hvd.Sum)
hvd.barrier()
"""

launch = pytest.fixture(launchers)


def run(launch: Any, folder: Path, program: str, *arguments: str, launcher: tuple[str, ...]) -> tuple[int, list[str]]:
    (folder / "program.py").write_text(program)
    process = launch("python", "program.py", str(LATE_S), *arguments, program=launcher, variables={"PATH": path()})
    code, out, error = finish(process, DEADLINE_S)
    return code, out + error


def path() -> str:
    """Returns a PATH on which `python` is this one."""
    return f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"


LOCKSTEP_RUN = ("-m", "lockstep", "run", "-n", "2", "--timeline", "traces")


def test_the_ordered_lane_and_tables(launch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run(launch, tmp_path, ORDERED, launcher=LOCKSTEP_RUN)
    assert code == 0, output
    found, others = traces.read_folder(str(tmp_path / "traces"))
    assert [trace.rank for trace in found] == [0, 1]
    assert others == []
    for trace in found:
        assert trace.ended
        # Ids and distinct ids of each lookup, in the order of the steps.
        ids = [np.random.default_rng([trace.rank, n]).integers(0, 100, 50) for n in range(6)]
        lookups = [event["args"] for event in trace.spans("lookup")]
        assert lookups == [{"table": "user", "ids": 50, "distinct_ids": len(np.unique(one))} for one in ids]
        sums = [event for event in trace.spans("collective") if "thousand" in event["name"]]
        assert [event["args"]["sent_bytes"] for event in sums] == [4000] * 6
        assert [event["args"]["received_bytes"] for event in sums] == [4000] * 6
        # A session marks its steps, and a step lasts from the end of the one before.
        assert [event["args"]["step"] for event in trace.spans("step")] == [2, 3, 4, 5, 6]
    waits = [event for event in found[0].spans("collective") if event["args"]["wait_us"] > LATE_S * 5e5]
    assert [event["args"]["late"] for event in waits] == [1]
    clocks = merging.align(found)
    assert clocks == {}  # one host has one clock
    latest = max(merging.exchanges(found), key=lambda one: one.late_us)
    assert latest.late == 1
    assert latest.late_us > LATE_S * 5e5

    assert command.main(["timeline", str(tmp_path / "traces"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    distinct = sum(
        len(np.unique(np.random.default_rng([rank, n]).integers(0, 100, 50))) for rank in (0, 1) for n in range(6)
    )
    (user,) = summary["tables"]
    assert (user["table"], user["lookups"], user["ids"], user["distinct_ids"]) == ("user", 12, 600, distinct)
    assert [rank["steps"] for rank in summary["ranks"]] == [5, 5]
    assert summary["ranks"][1]["late_ms"] > LATE_S * 500


def test_the_named_lane(launch: Any, tmp_path: Path) -> None:
    launcher = ("-m", "horovod.runner.launch", "-np", "2")
    (tmp_path / "program.py").write_text(NAMED)
    variables = {"PATH": path(), "LOCKSTEP_TIMELINE": str(tmp_path / "traces")}
    process = launch("python", "program.py", str(LATE_S), program=launcher, variables=variables)
    code, out, error = finish(process, DEADLINE_S)
    assert code == 0, out + error
    found, _ = traces.read_folder(str(tmp_path / "traces"))
    assert [trace.rank for trace in found] == [0, 1]
    for trace in found:
        assert list(merging.lane_names(trace).values()) == ["named lane"]
        for n in range(4):
            (event,) = [one for one in trace.spans("collective") if f"sum_{n}" in one["name"]]
            assert event["args"]["sent_bytes"] == event["args"]["received_bytes"] == 4000
    (waited,) = [event for event in found[0].spans("collective") if event["args"]["wait_us"] > LATE_S * 5e5]
    assert "sum_2" in waited["name"]
    assert waited["args"]["late"] == 1
    (one,) = [one for one in merging.exchanges(found) if "sum_2" in one.name]
    assert one.late == 1
    assert one.late_us > LATE_S * 5e5


def test_a_killed_rank_leaves_a_trace(launch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run(launch, tmp_path, ORDERED, "kill", launcher=LOCKSTEP_RUN)
    assert code != 0, output
    assert command.main(["timeline", str(tmp_path / "traces"), "-o", str(tmp_path / "merged.json")]) == 0
    assert "the trace of rank 1 has no end" in capsys.readouterr().out
    merged = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    steps = {event["args"]["step"] for event in merged if event.get("cat") == "step" and event["pid"] == 1}
    assert steps == {2, 3, 4, 5}


def test_a_folder_that_cannot_be_written_is_an_error_of_all_ranks(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("not a folder")
    code, output = run(launch, tmp_path, ORDERED, launcher=LOCKSTEP_RUN)
    assert code != 0
    text = "\n".join(output)
    assert f"timeline: folder {tmp_path / 'traces'} cannot be made: " in text or "cannot be written" in text, text
