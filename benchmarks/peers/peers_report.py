"""Tables and picture of a file of figures.

Usage: python benchmarks/peers/peers_report.py FILE

Writes the tables into docs/benchmarks.md and one sentence into README.md, between comments that name them, and the
picture of the training workloads into docs/pictures/benchmarks.svg.
"""

from __future__ import annotations

import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

from figures import Comparison, Figures, Measured
from workloads import ROOT

PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
PICTURE = ROOT / "docs" / "pictures" / "benchmarks.svg"
OURS = "Lockstep"
FIGURES = re.compile(r"(<!-- figures: ([\w-]+) -->)\n.*?(<!-- end of figures -->)", re.S)
_WITHOUT = "no communication"  # part of the titles of systems that don't train one model

_PAGE_WIDTH = 132  # characters of a line of prose

# The picture, in pixels.
_WIDTH, _LABEL, _VALUE = 780, 240, 110
_BAR, _GAP, _TITLE = 16, 5, 30


def write(figures: Figures) -> None:
    """Writes tables and picture into the repository."""
    tables = all_tables(figures)
    tables["machine"] = machine(figures)
    tables["sentence"] = sentence(of_group(figures, "training"))
    for page in PAGES:
        page.write_text(filled(page.read_text(), tables))
    PICTURE.write_text(picture(of_group(figures, "training")))


def all_tables(figures: Figures) -> dict[str, str]:
    """Returns the tables by the names that pages use."""
    training = of_group(figures, "training")
    groups = dict.fromkeys(comparison.group for comparison in figures.comparisons.values())
    tables = {group: table_of_parts(of_group(figures, group)) for group in groups if group != "training"}
    if not training:
        return tables
    tables["training"] = table(training, _value)
    tables["memory"] = table(training, lambda measured: f"{max(measured.peak_gib):.2f}" if measured.peak_gib else "")
    accurate = [c for c in training if any(measured.auc is not None for measured in c.systems.values())]
    tables["auc"] = table(accurate, lambda measured: "" if measured.auc is None else f"{measured.auc:.4f}")
    tables["ratios"] = ratios(training)
    return tables


def machine(figures: Figures) -> str:
    """Returns a sentence on the machine and the run."""
    measured = [one for comparison in figures.comparisons.values() for one in comparison.systems.values()]
    busy = [cores for one in measured for cores in one.busy_elsewhere]
    what = "a trial with few steps" if figures.is_trial else f"medians of {figures.rounds} rounds (lowest–highest)"
    others = f" Other programs used {statistics.median(busy):.2f} cores meanwhile (median)." if busy else ""
    return f"Measured on {figures.machine}: {what}.{others}"


def sentence(training: list[Comparison]) -> str:
    """Returns a sentence with our speed relative to each library that trains one model with several workers."""
    parts = []
    for system in _systems(training):
        found = sorted(float(ratio) for c in training if (ratio := _ratio(c, system)))
        if found and system != OURS and "," not in system:  # a comma begins a restriction, such as "one process"
            name = f"a {system}" if system.islower() else system
            parts.append(f"{found[0]:.1f} to {found[-1]:.1f} times as fast as {name}")
    text = f"Lockstep trains the models of the picture {', '.join(parts[:-1])} and {parts[-1]}." if parts[1:] else ""
    return textwrap.fill(text, _PAGE_WIDTH)


def of_group(figures: Figures, group: str) -> list[Comparison]:
    """Returns the comparisons of a group, in the order of the file."""
    return [comparison for comparison in figures.comparisons.values() if comparison.group == group]


def table(comparisons: list[Comparison], cell: Callable[[Measured], str]) -> str:
    """Returns a table with a row for each system that has any figures, and a column for each comparison."""
    rows = []
    for system in _systems(comparisons):
        cells = [cell(c.systems[system]) if system in c.systems else "" for c in comparisons]
        if any(cells):
            rows.append([_emphasized(system), *cells])
    return _lines(["", *(c.title for c in comparisons)], rows)


def table_of_parts(comparisons: list[Comparison]) -> str:
    """Returns a table with a row for each comparison, and a column for each system."""
    systems = _systems(comparisons)
    rows = [[c.title, *(_value(c.systems[s]) if s in c.systems else "" for s in systems)] for c in comparisons]
    return _lines([comparisons[0].unit if comparisons else "", *map(_emphasized, systems)], rows)


def ratios(comparisons: list[Comparison]) -> str:
    """Returns a table of our speed relative to each other system."""
    rows = [[s, *(_ratio(c, s) for c in comparisons)] for s in _systems(comparisons) if s != OURS]
    return _lines(["Lockstep relative to", *(c.title for c in comparisons)], [row for row in rows if any(row[1:])])


def _lines(head: list[str], rows: list[list[str]]) -> str:
    """Returns a table; empty cells get a dash."""
    filled_rows = [[first, *(one or "–" for one in others)] for first, *others in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *filled_rows])


def _ratio(comparison: Comparison, system: str) -> str:
    ours, other = (comparison.systems.get(name) for name in (OURS, system))
    if not (ours and other and ours.values and other.values):
        return ""
    ratio = ours.median / other.median
    return f"{1 / ratio if comparison.less_is_better else ratio:.2f}"


def _systems(comparisons: Iterable[Comparison]) -> list[str]:
    return list(dict.fromkeys(system for comparison in comparisons for system in comparison.systems))


def _emphasized(system: str) -> str:
    return f"**{system}**" if system == OURS else system


def _value(measured: Measured) -> str:
    """Returns the median with the lowest and the highest value."""
    if not measured.values:
        return ""
    median, *ends = (_rounded(value) for value in (measured.median, min(measured.values), max(measured.values)))
    return median if len(measured.values) == 1 else f"{median} ({ends[0]}–{ends[1]})"


def _rounded(value: float) -> str:
    """Returns three digits, and whole thousands with a comma."""
    if value >= 1000:
        return f"{round(value, -2):,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def filled(text: str, tables: dict[str, str]) -> str:
    """Returns a page with new contents between `<!-- figures: NAME -->` and `<!-- end of figures -->`."""

    def replaced(match: re.Match) -> str:
        name = match[2]
        return f"{match[1]}\n\n{tables[name]}\n\n{match[3]}" if name in tables else match[0]

    return FIGURES.sub(replaced, text)


def picture(comparisons: list[Comparison]) -> str:
    """Returns an SVG with a bar for each system, below the title of each comparison.

    A line on each bar goes from the lowest to the highest value. The background is white, so the picture can be read on
    dark pages as well.
    """
    elements, y = [], 8
    for comparison in comparisons:
        elements.append(f'<text x="8" y="{y + 18}" font-weight="bold">{escape(comparison.title)}</text>')
        elements.append(
            f'<text x="{_WIDTH - 8}" y="{y + 18}" text-anchor="end" fill="#555">{escape(comparison.unit)}</text>'
        )
        y += _TITLE
        shown = {system: measured for system, measured in comparison.systems.items() if measured.values}
        most = max((max(measured.values) for measured in shown.values()), default=1.0)
        for system, measured in shown.items():
            elements += _bar(system, measured, most, y)
            y += _BAR + _GAP
        y += _GAP
    frame = f'<rect width="{_WIDTH}" height="{y + 8}" fill="white"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 8}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="12" fill="#111">', frame, *elements, "</svg>"]) + "\n"


def _bar(system: str, measured: Measured, most: float, y: int) -> list[str]:
    """Returns the elements of one bar."""

    def at(value: float) -> float:
        return _LABEL + value / most * (_WIDTH - _LABEL - _VALUE)

    color = "#3949ab" if system == OURS else "#cfd4da" if _WITHOUT in system else "#8fa3b8"
    weight = ' font-weight="bold"' if system == OURS else ""
    middle, low, high = y + _BAR / 2, at(min(measured.values)), at(max(measured.values))
    return [
        f'<text x="{_LABEL - 8}" y="{y + 12}" text-anchor="end"{weight}>{escape(system)}</text>',
        f'<rect x="{_LABEL}" y="{y}" width="{at(measured.median) - _LABEL:.1f}" height="{_BAR}" fill="{color}"/>',
        f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#111"/>',
        f'<text x="{high + 6:.1f}" y="{y + 12}"{weight}>{_rounded(measured.median)}</text>',
    ]


if __name__ == "__main__":
    write(Figures.load(Path(sys.argv[1])))
