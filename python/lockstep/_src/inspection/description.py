"""Descriptions of files, and how they are shown."""

from collections.abc import Mapping
from typing import Any

from lockstep.launch.base.printing import printable
from lockstep.launch.base.sizes import size_of

# The least width of the column with the names of single values.
_LABEL_CHARACTERS = 16

# Texts, numbers, and lists of rows, by name. Names that end in "bytes" are sizes.
Description = dict[str, Any]


class InspectError(ValueError):
    """A file that cannot be described. The message names it."""


def lines_of(description: Mapping[str, Any]) -> list[str]:
    """Returns the lines of a description for a person: `name: value`, and a table for each list of rows."""
    shown = {name: value for name, value in description.items() if value not in (None, "", [])}
    single = {name: value for name, value in shown.items() if not isinstance(value, list)}
    width = max([_LABEL_CHARACTERS, *(len(_label(name)) + 2 for name in single)])
    lines = [f"{_label(name) + ':':<{width}}{_text(name, value)}" for name, value in single.items()]
    for name, value in shown.items():
        if isinstance(value, list):
            lines += ["", f"{name} ({len(value)})", *_table(value)]
    return lines


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns a table with a heading. Columns without any value are left out."""
    names = [name for name in rows[0] if any(row[name] not in (None, "", []) for row in rows)]
    cells = [[_label(name) for name in names], *([_text(name, row[name]) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [all(isinstance(row[name], (int, float, type(None))) for row in rows) for name in names]

    def line(row: list[str]) -> str:
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numeric, strict=True)
        )
        return ("  " + "  ".join(padded)).rstrip()

    return [line(row) for row in cells]


def _label(name: str) -> str:
    return "size" if name == "bytes" else name.replace("_", " ")


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("bytes"):
        return size_of(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
