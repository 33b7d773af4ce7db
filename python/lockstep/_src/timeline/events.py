"""Checks of the events in trace files. The file may come from anywhere: what passes can be summed, sorted and drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

# Numbers beyond this cannot be distinguished from their neighbours as floats: microseconds of 285 years.
_MOST = 2**53
MOST_RANKS = 1 << 20

# For each kind of value, its check and how a message calls it.
_KINDS = {
    "text": (lambda value: isinstance(value, str), "a text"),
    "count": (lambda value: _is_int(value) and 0 <= value <= _MOST, "an integer from 0 to 2^53"),
    "time": (lambda value: _is_number(value) and abs(value) <= _MOST, "a time in microseconds"),
    "duration": (lambda value: _is_number(value) and 0 <= value <= _MOST, "a duration in microseconds"),
    "flag": (lambda value: isinstance(value, bool), "true or false"),
}
_HEAD = {"rank": "count", "size": "count", "job": "text", "host": "text", "boot": "text", "unix_s": "count"}
_END = {"dropped": "count", "full": "flag"}
_SPAN = {"name": "text", "cat": "text", "tid": "count", "ts": "time", "dur": "duration"}
# The arguments of spans by their category. Arguments of other categories are not used.
_ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "collective": {"number": "count", "sent_bytes": "count", "received_bytes": "count", "wait_us": "duration"},
    "step": {"step": "count"},
    "lookup": {"table": "text", "ids": "count", "distinct_ids": "count"},
    "keys": {"table": "text", "keys": "count", "inserted_keys": "count"},
}


def parse(line: str) -> dict[str, Any] | None:
    """Returns the event in a line of a trace; None if it is none."""
    try:
        event = json.loads(line.removesuffix(","))
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("args"), dict) else None


def wrong_in_head(about: Mapping[str, Any]) -> str:
    """Returns what is wrong with the arguments of a trace's first event; empty if nothing is."""
    if wrong := _wrong(about, _HEAD):
        return wrong
    if not about["rank"] < about["size"] <= MOST_RANKS:
        return f"rank is {about['rank']} and size is {about['size']}, wanted rank < size <= {MOST_RANKS}"
    return ""


def wrong_in_end(about: Mapping[str, Any]) -> str:
    """Returns what is wrong with the arguments of a trace's last event; empty if nothing is."""
    return _wrong(about, _END)


def wrong_in(event: Mapping[str, Any]) -> str:
    """Returns what is wrong with an event between the first and the last one; empty if nothing is."""
    if event.get("name") == "thread_name":
        return _wrong(event, {"tid": "count"}) or _wrong(event["args"], {"name": "text"})
    if event.get("ph") == "X" or "ts" in event or event.get("cat") in (*_ARGUMENTS, "wait"):
        return _wrong(event, _SPAN) or _wrong(event["args"], _ARGUMENTS.get(event["cat"], {}))
    return ""


def _wrong(values: Mapping[str, Any], wanted: Mapping[str, str]) -> str:
    for name, kind in wanted.items():
        fits, text = _KINDS[kind]
        if not fits(values.get(name)):
            return f"{name} is {_shown(values.get(name))}, wanted {text}"
    return ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))
