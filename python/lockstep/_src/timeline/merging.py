"""Brings the times of all ranks to one clock, and finds the ranks that came last.

Processes of one machine have one clock. The exchanges compare the clocks of machines: an exchange ends on no rank
before it has begun on every rank. So each exchange limits the difference of two clocks from both sides, and short
exchanges limit it best. Clocks drift, so there is a difference for every `WINDOW_US` of the job.
"""

from __future__ import annotations

import bisect
import dataclasses
import statistics
from typing import Any

from lockstep._src.timeline.traces import Trace

WINDOW_US = 10e6


@dataclasses.dataclass
class Clock:
    """The difference between a machine's clock and the clock of rank 0's machine: by time, with straight lines between.

    Attributes:
      at: Times of the machine, ascending.
      add: The differences at these times.
      uncertainty_us: Half of the width between the limits, in the median; None: no exchange limits it.
    """

    at: list[float]
    add: list[float]
    uncertainty_us: float | None

    def common(self, time: float) -> float:
        """Returns a time of the machine by the clock of rank 0's machine."""
        if not self.at:
            return time
        i = bisect.bisect(self.at, time)
        if i == 0 or i == len(self.at):
            return time + self.add[min(i, len(self.at) - 1)]
        part = (time - self.at[i - 1]) / (self.at[i] - self.at[i - 1])
        return time + self.add[i - 1] + part * (self.add[i] - self.add[i - 1])


@dataclasses.dataclass
class Exchange:
    """An exchange on all ranks that recorded it.

    Attributes:
      lane: The name of its lane.
      number: Its number in the lane.
      name: Its kind and name.
      begin: When it began, by rank, in microseconds.
      end: When it ended, by rank.
      wait_us: How long each rank waited for others, by rank.
      sent_bytes: The bytes that each rank sent, by rank.
    """

    lane: str
    number: int
    name: str
    begin: dict[int, float] = dataclasses.field(default_factory=dict)
    end: dict[int, float] = dataclasses.field(default_factory=dict)
    wait_us: dict[int, float] = dataclasses.field(default_factory=dict)
    sent_bytes: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def late(self) -> int | None:
        """The rank that came last; None: fewer than two ranks have recorded it."""
        return max(self.begin, key=lambda rank: self.begin[rank]) if len(self.begin) > 1 else None

    @property
    def late_us(self) -> float:
        """How long after the rank before it the last rank came."""
        times = sorted(self.begin.values())
        return times[-1] - times[-2] if len(times) > 1 else 0.0

    @property
    def duration_us(self) -> float:
        """The time from the last rank's begin to the last rank's end."""
        return max(0.0, max(self.end.values()) - max(self.begin.values()))


def exchanges(traces: list[Trace]) -> list[Exchange]:
    """Returns the exchanges of all ranks, in the order of their begins."""
    found: dict[tuple[str, int], Exchange] = {}
    for trace in traces:
        lanes = lane_names(trace)
        for event in trace.spans("collective"):
            lane, number = lanes.get(event["tid"], str(event["tid"])), event["args"]["number"]
            one = found.setdefault((lane, number), Exchange(lane, number, event["name"]))
            one.begin[trace.rank] = event["ts"]
            one.end[trace.rank] = event["ts"] + event["dur"]
            one.wait_us[trace.rank] = event["args"]["wait_us"]
            one.sent_bytes[trace.rank] = event["args"]["sent_bytes"]
    return sorted(found.values(), key=lambda one: min(one.begin.values()))


def lane_names(trace: Trace) -> dict[int, str]:
    """Returns the names of a trace's lanes, by row."""
    prefix = "collectives: "
    names = {event["tid"]: event["args"]["name"] for event in trace.events if event.get("name") == "thread_name"}
    return {row: name.removeprefix(prefix) for row, name in names.items() if name.startswith(prefix)}


def align(traces: list[Trace]) -> dict[str, Clock]:
    """Moves the times of all events to the clock of rank 0's machine, and the first event to 0.

    Returns:
      The clocks of the other machines, by the name of the host.
    """
    boots = {trace.rank: trace.boot for trace in traces}
    reference = traces[0].boot
    together = exchanges(traces)
    clocks: dict[str, Clock] = {}
    for boot in {trace.boot for trace in traces} - {reference}:
        clock = _clock(together, boots, reference, boot)
        for trace in traces:
            if trace.boot != boot:
                continue
            clocks[trace.host] = clock
            for event in trace.events:
                if "ts" in event:
                    event["ts"] = clock.common(event["ts"])
    first = min((event["ts"] for trace in traces for event in trace.events if "ts" in event), default=0.0)
    for trace in traces:
        for event in trace.events:
            if "ts" in event:
                event["ts"] = round(event["ts"] - first, 3)
    return clocks


def _clock(together: list[Exchange], boots: dict[int, str], reference: str, boot: str) -> Clock:
    limits: dict[int, tuple[float, float]] = {}
    for one in together:
        here = [rank for rank in one.begin if boots[rank] == boot]
        there = [rank for rank in one.begin if boots[rank] == reference]
        if not here or not there:
            continue
        low = max(one.begin[rank] for rank in there) - min(one.end[rank] for rank in here)
        high = min(one.end[rank] for rank in there) - max(one.begin[rank] for rank in here)
        window = int(min(one.begin[rank] for rank in here) // WINDOW_US)
        before = limits.get(window, (-float("inf"), float("inf")))
        limits[window] = (max(before[0], low), min(before[1], high))
    windows = sorted(limits)
    return Clock(
        [(window + 0.5) * WINDOW_US for window in windows],
        [sum(limits[window]) / 2 for window in windows],
        statistics.median(abs(high - low) / 2 for low, high in limits.values()) if limits else None,
    )


def merged(traces: list[Trace]) -> dict[str, Any]:
    """Returns one trace of all ranks, as Chrome's viewers read it; `align` comes first."""
    return {"displayTimeUnit": "ms", "traceEvents": [event for trace in traces for event in trace.events]}
