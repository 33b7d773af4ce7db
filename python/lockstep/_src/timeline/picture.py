"""Draws some steps of an aligned timeline as an SVG."""

from __future__ import annotations

import html
from typing import Any

from lockstep._src.timeline.merging import lane_names
from lockstep._src.timeline.traces import TimelineError, Trace
from lockstep.launch.base.printing import printable

_WIDTH, _LEFT, _ROW, _GAP, _TOP, _BOTTOM = 960, 150, 18, 14, 34, 30
_STYLE = """\
  text { font: 12px system-ui, sans-serif; fill: #1a1a1a; }
  .small { font-size: 10px; fill: #555555; }
  .step { fill: #e8edf3; stroke: #9aa7b5; }
  .collective { fill: #3b76af; }
  .wait { fill: #e0883a; }
  .lookup, .keys { fill: #4f9a63; }
  .axis { stroke: #9aa7b5; fill: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e6e6; } .small { fill: #b0b0b0; } .step { fill: #2c3640; stroke: #5b6875; }
  }"""


def svg(traces: list[Trace], first: int | None = None, last: int | None = None) -> str:
    """Returns a picture of steps: a group of rows for each rank, with its steps, lookups, exchanges and waits.

    Args:
      traces: The traces, aligned.
      first: The first step; None: two steps in the middle of the job.
      last: The last step; None: `first`.

    Raises:
      TimelineError: rank 0 has not recorded these steps.
    """
    begin, end, title = _range(traces[0], first, last)
    scale = (_WIDTH - _LEFT - 10) / max(1e-9, end - begin)
    body, y = [], float(_TOP)
    for trace in traces:
        lanes = lane_names(trace)
        rows: list[tuple[str, list[dict[str, Any]]]] = [("step", trace.spans("step"))]
        rows.append(("lookups", [*trace.spans("lookup"), *trace.spans("keys")]))
        for row, name in sorted(lanes.items()):
            of_lane = [event for event in trace.events if event.get("tid") == row and event.get("ph") == "X"]
            rows.append((f"lane: {name}", of_lane))
        body.append(f'<text x="4" y="{y + 13:g}" font-weight="bold">rank {trace.rank}</text>')
        for name, events in rows:
            seen = [event for event in events if event["ts"] < end and event["ts"] + event["dur"] > begin]
            if not seen and name != "step":
                continue
            body.append(f'<text class="small" x="{_LEFT - 6}" y="{y + 13:g}" text-anchor="end">{_text(name)}</text>')
            # Waits lie inside of exchanges, and are drawn over them.
            for event in sorted(seen, key=lambda event: event["cat"] == "wait"):
                body.append(_box(event, begin, end, scale, y))
            y += _ROW
        y += _GAP
    height = y + _BOTTOM
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img">',
            f"<title>{_text(title)}</title>",
            f"<style>\n{_STYLE}\n</style>",
            _legend(title),
            *body,
            *_axis(begin, end, scale, y),
            "</svg>",
            "",
        ]
    )


def _range(trace: Trace, first: int | None, last: int | None) -> tuple[float, float, str]:
    steps = {event["args"]["step"]: event for event in trace.spans("step")}
    if not steps:
        raise TimelineError(
            f"{trace.path}: has no steps, so there is nothing to draw. fit(), sessions and estimators mark steps in "
            "lockstep.scope(); in a loop of your own, call lockstep.end_step() after each step"
        )
    if first is None:
        numbers = sorted(steps)
        first = numbers[len(numbers) // 2]
        last = numbers[min(len(numbers) - 1, len(numbers) // 2 + 1)]
    last = first if last is None else last
    for number in (first, last):
        if number not in steps:
            raise TimelineError(f"{trace.path}: has no step {number}, wanted {min(steps)} to {max(steps)}")
    begin, end = steps[first]["ts"], steps[last]["ts"] + steps[last]["dur"]
    if begin >= end:
        raise TimelineError(f"steps {first}:{last}: wanted the first one before the last")
    return (
        begin,
        end,
        f"Timeline of {'step' if first == last else 'steps'} {first}" + ("" if first == last else f" to {last}"),
    )


def _box(event: dict[str, Any], begin: float, end: float, scale: float, y: float) -> str:
    left, right = max(begin, event["ts"]), min(end, event["ts"] + event["dur"])
    about = ", ".join(f"{key} {value}" for key, value in event["args"].items())
    tip = f"{event['name']}: {event['dur'] / 1000:.3f} ms" + (f", {about}" if about else "")
    width = max(0.75, (right - left) * scale)
    kind = _text(event["cat"])
    return (
        f'<rect class="{kind}" x="{_LEFT + (left - begin) * scale:.2f}" y="{y + 2:g}" width="{width:.2f}" '
        f'height="{_ROW - 4}"><title>{_text(tip)}</title></rect>'
    )


def _legend(title: str) -> str:
    parts = [f'<text x="4" y="16">{_text(title)}</text>']
    x = 300
    for kind, name in (("step", "step"), ("lookup", "lookup"), ("collective", "exchange"), ("wait", "wait")):
        parts.append(f'<rect class="{kind}" x="{x}" y="6" width="14" height="12"/>')
        parts.append(f'<text class="small" x="{x + 19}" y="16">{name}</text>')
        x += 90
    return "\n".join(parts)


def _axis(begin: float, end: float, scale: float, y: float) -> list[str]:
    unit = next(
        step * 10**power for power in range(16) for step in (1, 2, 5) if (end - begin) / (step * 10**power) <= 10
    )
    lines = [f'<path class="axis" d="M{_LEFT} {y:g}H{_WIDTH - 10}"/>']
    for i in range(int((end - begin) / unit) + 1):
        x = _LEFT + i * unit * scale
        lines.append(f'<path class="axis" d="M{x:.1f} {y:g}v4"/>')
        lines.append(
            f'<text class="small" x="{x:.1f}" y="{y + 16:g}" text-anchor="middle">{i * unit / 1000:g} ms</text>'
        )
    return lines


def _text(text: str) -> str:
    return html.escape(printable(text), quote=True)
