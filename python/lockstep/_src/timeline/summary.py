"""Summarizes the aligned traces of a job: a dict of numbers, and lines of text."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Sequence
from typing import Any

from lockstep._src.timeline.merging import Clock, Exchange, exchanges
from lockstep._src.timeline.traces import Trace
from lockstep.launch.base.printing import printable

# How many exchanges a table shows: exchanges of each step, and exchanges that come seldom.
_SLOWEST, _SLOWEST_SELDOM = 8, 3
# The longest name of an exchange in a table; longer ones are shortened.
_NAME_CHARACTERS = 80
# The part of a name that distinguishes exchanges for the same number of tables.
_HASH = re.compile(r"(?<=_more)/[0-9a-f]{16}\b")
_GAP = "..."
_MS = 1e-3


def summarize(traces: list[Trace], clocks: dict[str, Clock]) -> dict[str, Any]:
    """Returns the summary of aligned traces; docs/timeline.md describes its keys."""
    together = exchanges(traces)
    late: collections.Counter[int] = collections.Counter()
    late_us: collections.Counter[int] = collections.Counter()
    begin, end = _training(traces)
    for one in together:
        if one.late is not None and begin <= max(one.begin.values()) <= end:
            late[one.late] += 1
            late_us[one.late] += int(one.late_us)
    return {
        "job": traces[0].job,
        "size": traces[0].size,
        "ranks": [_rank(trace, late[trace.rank], late_us[trace.rank]) for trace in traces],
        "missing_ranks": sorted(set(range(traces[0].size)) - {trace.rank for trace in traces}),
        "tables": _tables(traces),
        "exchanges": _by_name(together),
        "clocks": {host: clock.uncertainty_us for host, clock in clocks.items()},
    }


def _training(traces: list[Trace]) -> tuple[float, float]:
    """Returns the time from the start of the first recorded step to the end of the last one, or all time."""
    steps = [event for trace in traces for event in trace.spans("step")]
    if not steps:
        return -math.inf, math.inf
    return min(event["ts"] for event in steps), max(event["ts"] + event["dur"] for event in steps)


def _rank(trace: Trace, late: int, late_us: float) -> dict[str, Any]:
    collectives, steps = trace.spans("collective"), trace.spans("step")
    busy = _union([(event["ts"], event["ts"] + event["dur"]) for event in collectives])
    # Without steps, everything between the first and the last exchange counts.
    spans = _union([(event["ts"], event["ts"] + event["dur"]) for event in steps])
    if not steps and busy:
        spans = [(busy[0][0], busy[-1][1])]
    exchange_us, total_us = _overlap(spans, busy), sum(end - begin for begin, end in spans)
    waits = _union([(event["ts"], event["ts"] + event["dur"]) for event in trace.spans("wait")])
    return {
        "rank": trace.rank,
        "host": trace.host,
        "ended": trace.ended,
        "dropped_events": trace.dropped,
        "full": trace.full,
        "steps": len(steps),
        "ms": total_us * _MS,
        "compute_ms": (total_us - exchange_us) * _MS,
        "exchange_ms": exchange_us * _MS,
        "wait_ms": _overlap(spans, waits) * _MS,
        "collectives": len(collectives),
        "sent_bytes": sum(event["args"]["sent_bytes"] for event in collectives),
        "received_bytes": sum(event["args"]["received_bytes"] for event in collectives),
        "last": late,
        "late_ms": late_us * _MS,
    }


def _union(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _overlap(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> float:
    """Returns the length that two lists of disjoint, sorted spans have in common."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def _tables(traces: list[Trace]) -> list[dict[str, Any]]:
    tables: dict[str, collections.Counter[str]] = {}
    for trace in traces:
        for event in trace.spans("lookup"):
            counts = tables.setdefault(event["args"]["table"], collections.Counter())
            counts["lookups"] += 1
            counts["ids"] += event["args"]["ids"]
            counts["distinct_ids"] += event["args"]["distinct_ids"]
        for event in trace.spans("keys"):
            counts = tables.setdefault(event["args"]["table"], collections.Counter())
            counts["keys"] += event["args"]["keys"]
            counts["inserted_keys"] += event["args"]["inserted_keys"]
    keys = ("lookups", "ids", "distinct_ids", "keys", "inserted_keys")
    return [{"table": name, **{key: counts[key] for key in keys}} for name, counts in sorted(tables.items())]


def _by_name(together: list[Exchange]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[Exchange]] = {}
    for one in together:
        groups.setdefault((one.lane, one.name), []).append(one)
    found = []
    for (lane, name), group in groups.items():
        late = collections.Counter(one.late for one in group if one.late is not None)
        found.append(
            {
                "lane": lane,
                "name": name,
                "count": len(group),
                "transfer_ms": sum(one.duration_us for one in group) * _MS,
                "longest_ms": max(one.duration_us for one in group) * _MS,
                "wait_ms": sum(max(one.wait_us.values()) for one in group) * _MS,
                "sent_bytes": sum(sum(one.sent_bytes.values()) for one in group),
                "last_rank": late.most_common(1)[0][0] if late else None,
            }
        )
    return sorted(found, key=lambda one: -(one["transfer_ms"] + one["wait_ms"]))


def lines_of(summary: dict[str, Any], others: int = 0) -> list[str]:
    """Returns the lines to print.

    Args:
      summary: The summary.
      others: The number of traces of other jobs in the folder.
    """
    ranks = summary["ranks"]
    lines = [f"job {summary['job']}: traces of {len(ranks)} of {summary['size']} ranks", ""]
    lines += _table(
        ["rank", "steps", "compute ms", "exchange ms", "wait ms", "last", "late ms", "sent", "received"],
        [
            [
                str(one["rank"]),
                str(one["steps"]),
                _number(one["compute_ms"]),
                _number(one["exchange_ms"]),
                _number(one["wait_ms"]),
                str(one["last"]),
                _number(one["late_ms"]),
                _size(one["sent_bytes"]),
                _size(one["received_bytes"]),
            ]
            for one in ranks
        ],
    )
    if summary["tables"]:
        rows = [
            [
                one["table"],
                str(one["lookups"]),
                str(one["ids"]),
                str(one["distinct_ids"]),
                f"{one['distinct_ids'] / one['ids']:.3f}" if one["ids"] else "-",
                str(one["inserted_keys"]),
            ]
            for one in summary["tables"]
        ]
        lines += ["", *_table(["table", "lookups", "ids", "distinct", "ratio", "new keys"], rows)]
    # A step's exchanges come in nearly every step; the first steps may lack some.
    steps = max(one["steps"] for one in ranks)
    of_steps = [one for one in summary["exchanges"] if one["count"] >= steps / 2]
    seldom = [one for one in summary["exchanges"] if one["count"] < steps / 2]
    lines += _exchanges("slowest exchanges of the steps" if steps else "slowest exchanges", of_steps[:_SLOWEST])
    lines += _exchanges("exchanges that come seldom", seldom[:_SLOWEST_SELDOM])
    return [printable(line) for line in lines + _notes(summary, others)]


def _exchanges(title: str, shown: list[dict[str, Any]]) -> list[str]:
    """Returns the lines of a table of exchanges, with an empty line before it; none without exchanges."""
    if not shown:
        return []
    rows = [
        [
            name,
            str(one["count"]),
            _number(one["transfer_ms"]),
            _number(one["wait_ms"]),
            _size(one["sent_bytes"]),
            "-" if one["last_rank"] is None else str(one["last_rank"]),
        ]
        for name, one in zip(_shortened([one["name"] for one in shown]), shown, strict=True)
    ]
    return ["", *_table([title, "count", "transfer ms", "wait ms", "sent", "mostly last"], rows)]


def _notes(summary: dict[str, Any], others: int) -> list[str]:
    notes = []
    if summary["missing_ranks"]:
        notes.append(f"no trace of rank {_listed(summary['missing_ranks'])}")
    for one in summary["ranks"]:
        if not one["ended"]:
            notes.append(f"the trace of rank {one['rank']} has no end: its process was killed, or still runs")
        if one["full"]:
            notes.append(f"the trace of rank {one['rank']} is full; later events are missing")
        if one["dropped_events"]:
            notes.append(f"rank {one['rank']} dropped {one['dropped_events']} events, which came too fast")
    for host, uncertainty in summary["clocks"].items():
        if uncertainty is None:
            notes.append(f"clock of host {host}: not aligned: no exchange in common")
        else:
            notes.append(f"clock of host {host}: aligned by exchanges, within {uncertainty:.0f} us")
    if others:
        notes.append(f"{others} files of earlier jobs are left out (--job)")
    return ["", *notes] if notes else []


def _table(header: Sequence[str], rows: list[list[str]]) -> list[str]:
    """Returns the lines of a table: the first column to the left, the others to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *rows]) for i in range(len(header))]
    lines = []
    for row in [list(header), *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def _shortened(names: list[str]) -> list[str]:
    """Returns names without their middle where they are long. Different names stay different.

    Names of exchanges begin with the same scope, and often end alike. So names that would look alike get longer, until
    they differ.
    """
    without_hash = [_HASH.sub("", name) for name in names]
    if len(set(without_hash)) == len(set(names)):
        names = without_hash
    shortened: dict[str, str] = {}
    waiting, length = sorted(set(names)), _NAME_CHARACTERS
    while waiting:
        by_text: dict[str, list[str]] = {}
        for name in waiting:
            by_text.setdefault(_without_middle(name, length), []).append(name)
        shortened |= {alike[0]: text for text, alike in by_text.items() if len(alike) == 1}
        waiting = [name for alike in by_text.values() if len(alike) > 1 for name in alike]
        length *= 2
    return [shortened[name] for name in names]


def _without_middle(name: str, length: int) -> str:
    if len(name) <= length:
        return name
    end = (length - len(_GAP)) // 3  # the beginning says more
    return name[: length - len(_GAP) - end] + _GAP + name[len(name) - end :]


def _number(value: float) -> str:
    return f"{value:.1f}"


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def _listed(ranks: list[int]) -> str:
    """Returns ascending ranks as a text: "0, 2 to 7"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}, {b}" if a + 1 == b else f"{a} to {b}" for a, b in runs)
