"""The picture of a training run: the loss of each step, and the AUC of each evaluation, as an SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

WIDTH, PANEL_HEIGHT = 640, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 28, 32  # margins of a panel
_FONT = 'font-family="sans-serif" font-size="12"'
_MOST_POINTS = 300

# (step, value), in the order of steps.
Points = Sequence[tuple[float, float]]


def save(path: Path, title: str, panels: dict[str, Points]) -> None:
    """Writes a picture with one panel below the other, all over the same steps.

    Args:
      path: the file. Its folder is made if it does not exist.
      title: the text above the panels.
      panels: label -> (step, value) pairs. Where there are more than 300, the line shows means over equal parts.
        A panel without points says so.
    """
    steps = [step for points in panels.values() for step, _ in points] or [0, 1]
    height = PANEL_HEIGHT * len(panels) + _TOP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {_FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for number, (label, points) in enumerate(panels.items()):
        lines.append(f'<g transform="translate(0 {_TOP + number * PANEL_HEIGHT})">')
        lines += _panel(label, _thinned(points), min(steps), max(steps))
        lines.append("</g>")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, "</svg>"]) + "\n")


def _thinned(points: Points) -> np.ndarray:
    """Returns the finite points [n, 2]; if there are many, the means of equal parts of them."""
    array = np.array(points, float).reshape(-1, 2)
    array = array[np.isfinite(array).all(axis=1)]
    if len(array) <= _MOST_POINTS:
        return array
    return np.array([part.mean(axis=0) for part in np.array_split(array, _MOST_POINTS)])


def _panel(label: str, points: np.ndarray, first: float, last: float) -> list[str]:
    """Returns the elements of a panel: frame, ends of both axes, line. A few points get dots."""
    right, bottom = WIDTH - _RIGHT, PANEL_HEIGHT - _BOTTOM
    elements = [
        f'<path d="M{_LEFT} 8V{bottom}H{right}" fill="none" stroke="#888"/>',
        f'<text x="{_LEFT + 8}" y="18">{escape(label)}</text>',
        f'<text x="{_LEFT}" y="{bottom + 16}" text-anchor="middle">{first:g}</text>',
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">step {last:g}</text>',
    ]
    if not len(points):
        return [*elements, f'<text x="{WIDTH / 2}" y="{PANEL_HEIGHT / 2}">nothing was measured</text>']
    low, high = points[:, 1].min(), points[:, 1].max()
    x = _LEFT + (points[:, 0] - first) / max(last - first, 1) * (right - _LEFT)
    y = bottom - (points[:, 1] - low) / (high - low or 1) * (bottom - 24)
    for value, at in {f"{low:.4f}": bottom, f"{high:.4f}": 24}.items():
        elements.append(f'<text x="{_LEFT - 6}" y="{at + 4}" text-anchor="end">{value}</text>')
    places = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    elements.append(f'<polyline points="{places}" fill="none" stroke="#3949ab" stroke-width="1.5"/>')
    if len(points) <= 20:
        elements += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="#3949ab"/>' for a, b in zip(x, y, strict=True)]
    return elements
