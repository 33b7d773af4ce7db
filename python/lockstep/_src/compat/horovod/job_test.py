"""The timeline's file, and what is said of a rank that is late."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep.testing import call_workers
from lockstep.testing.launching import wait_for

pytestmark = pytest.mark.workers


def record(folder):
    hvd.init()
    # Ranks run ahead of rank 0, whose file it is.
    hvd.barrier()
    hvd.allreduce(tf.ones([2, 3]), name="first")
    hvd.grouped_allreduce([tf.ones([1]), tf.ones([2])], name="group")
    hvd.stop_timeline()
    hvd.barrier()
    hvd.broadcast(tf.ones([1]), 0, name="between")
    hvd.start_timeline(f"{folder}/second.json")
    hvd.alltoall(tf.ones([2]), name="second")
    hvd.stop_timeline()
    hvd.stop_timeline()
    warned = Path(folder, "warned")
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="timeline /nowhere/x: No such file"):
            hvd.start_timeline("/nowhere/x")
        with warned.open("w") as file:
            os.dup2(file.fileno(), 2)
    else:
        wait_for(lambda: warned.exists() and "late" in warned.read_text(), "rank 0 to warn of what is late")
    hvd.allreduce(tf.ones([1]), name="late")
    hvd.shutdown()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.start_timeline(f"{folder}/third.json")


def rows(path):
    """Returns for each tensor of a timeline the names of its events' starts and marks, in order."""
    events = json.loads(path.read_text())
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    found = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] in "BXi":
            found[names[event["pid"]]].append(event["name"])
    times = [event["ts"] for event in events if "ts" in event]
    assert times == sorted(times)
    opened = [event["ph"] for event in events]
    assert opened.count("B") == opened.count("E")
    return found


# Promise (horovod.md): the timeline names tensors and ranks, also of a killed process.
# Promise (horovod.md): stalls are warned of and end in a timeout.
def test_the_timeline_names_tensors_and_ranks(tmp_path):
    """And a rank that is late is named, with the tensor."""
    environment = {
        "HOROVOD_TIMELINE": str(tmp_path / "first.json"),
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
        "HOROVOD_FUSION_THRESHOLD": "0",
    }
    outcomes = call_workers(record, 2, str(tmp_path), environment=environment, check=False)
    assert all(outcome.succeeded for outcome in outcomes), outcomes
    first = rows(tmp_path / "first.json")
    (row,) = [events for name, events in first.items() if "first" in name]
    assert row[0] == "NEGOTIATE_ALLREDUCE" and sorted(row[1:3]) == ["0", "1"]
    assert row[3:] == ["ALLREDUCE", "QUEUE", "EXCHANGE"]
    assert len([name for name in first if "group" in name]) == 2
    assert not [name for name in first if "between" in name]
    assert set(first["cycles"]) == {"CYCLE_START"}
    second = rows(tmp_path / "second.json")
    ((name, row),) = second.items()
    assert "second" in name and "ALLTOALL" in row
    said = (tmp_path / "warned").read_text().splitlines()
    warnings = [line for line in said if line.endswith("other ranks wait") and "late" in line]
    assert warnings and all(re.search(r"rank 1 did not request it within \d+ s", line) for line in warnings), said
    assert "other ranks wait" not in outcomes[1].output
