"""The places of tables' rows, which a program chooses with the option `placement`.

| value | rows of a table are |
| --- | --- |
| `'rows'` | dealt to the workers in turn; small tables are replicated, as the rules of a scope say |
| `'rows:61'` | dealt in blocks of 61 rows, for ids that are multiples of the number of workers |
| `'replicated'` | on every worker |
| `'worker'` | on one worker, the one with the least work so far |
| `'worker:1'` | on worker 1 |
| `'auto'` | where the planner puts them (`tables/placement/planner.py`) |

A mapping gives patterns of table names such values, as does the JSON file that `lockstep.plan().save(path)` writes.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import math
import re
from collections.abc import Mapping
from typing import Any

_PLACEMENT = re.compile(r"rows(:[1-9]\d*)?|replicated|worker(:\d+)?|auto")
_WANTED = "'rows', 'rows:<block>', 'replicated', 'worker', 'worker:<rank>' or 'auto'"

Placements = str | Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Wish:
    """The wish of a program for the place of a table.

    Attributes:
      kind: 'rows', 'replicated', 'worker' or 'auto'.
      number: of 'rows', the rows of a block; of 'worker', its rank; None: not given.
      ids: the ids that each worker is expected to look up in a step; None: not given.
      is_for_table: whether the program said it for tables of this name, and not for all tables of the scope.
    """

    kind: str
    number: int | None = None
    ids: float | None = None
    is_for_table: bool = False


def checked(value: Any) -> Placements:
    """Returns the value of the option `placement`, with a file's name replaced by its contents.

    Raises:
      TypeError: the value, or a part of it, has a wrong type.
      ValueError: a placement is unknown, or the file can't be read.
    """
    if hasattr(value, "__fspath__") or (isinstance(value, str) and value.endswith(".json")):
        value = _read(value)
    if isinstance(value, str):
        _wish(value, None, False)
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"got {value!r} of type {type(value).__name__}, wanted str, a mapping of table names or a path")
    for pattern, said in value.items():
        if not isinstance(pattern, str):
            raise TypeError(f"got {pattern!r} of type {type(pattern).__name__} as a table's name, wanted str")
        try:
            _of_table(said)
        except (TypeError, ValueError) as error:
            raise type(error)(f"table {pattern!r}: {error}") from None
    return dict(value)


def wish_for(table: str, placements: Placements) -> Wish:
    """Returns what `placements`, a checked value, says about a table: the first pattern that matches its name."""
    if isinstance(placements, str):
        return _wish(placements, None, False)
    said = next((said for pattern, said in placements.items() if fnmatch.fnmatchcase(table, pattern)), None)
    return Wish("rows") if said is None else _of_table(said)


def _of_table(said: Any) -> Wish:
    if not isinstance(said, Mapping):
        return _wish(said, None, True)
    unknown = sorted(set(said) - {"placement", "ids"})
    if unknown:
        raise ValueError(f"got {unknown[0]!r}, wanted 'placement' and 'ids'")
    return _wish(said.get("placement", "auto"), said.get("ids"), True)


def _wish(placement: Any, ids: Any, is_for_table: bool) -> Wish:
    if not isinstance(placement, str):
        raise TypeError(f"got {placement!r} of type {type(placement).__name__}, wanted {_WANTED}")
    if not _PLACEMENT.fullmatch(placement):
        raise ValueError(f"got {placement!r}, wanted {_WANTED}")
    if ids is not None:
        if isinstance(ids, bool) or not isinstance(ids, (int, float)):
            raise TypeError(f"ids: got {ids!r} of type {type(ids).__name__}, wanted a number of ids per step")
        if not 0 <= ids < math.inf:
            raise ValueError(f"ids: got {ids!r}, wanted a number of ids per step")
    kind, _, number = placement.partition(":")
    return Wish(kind, int(number) if number else None, ids, is_for_table)


def _read(path: Any) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise ValueError(f"plan file {str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"plan file {str(path)!r} is not JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("tables"), dict):
        raise ValueError(f"{str(path)!r} is not a plan: it has no 'tables'; lockstep.plan().save(path) writes one")
    return content["tables"]
