"""Filters: which rows of files are read, spelled as pyarrow spells them.

`[(column, op, value), ...]` keeps the rows for which all of these hold, a list of such lists those for which all of one
list hold: `filters=` of `pyarrow.parquet.read_table`, and with its meaning, since Arrow does the comparing.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

OPS = ("=", "==", "!=", "<", "<=", ">", ">=", "in", "not in")

Term = tuple[str, str, Any]
Filters = Sequence[Term] | Sequence[Sequence[Term]]


def conjunctions(filters: Filters | None) -> list[list[Term]]:
    """The filters as a list of lists of terms, empty without filters.

    Raises:
      TypeError, ValueError: it is no list of terms, or of lists of terms; an unknown op.
    """
    if filters is None:
        return []
    if isinstance(filters, (str, bytes)) or not isinstance(filters, Iterable):
        raise TypeError(f"filters is {filters!r}, wanted a list of (column, op, value), or a list of such lists")
    filters = list(filters)
    if filters and all(isinstance(term, tuple) for term in filters):
        filters = [filters]
    if not filters:
        raise ValueError("filters is empty, wanted at least one (column, op, value), or None for all rows")
    for conjunction in filters:
        if isinstance(conjunction, (str, bytes)) or not isinstance(conjunction, Sequence) or not conjunction:
            raise TypeError(f"filters: {conjunction!r} is not a list of (column, op, value)")
        for term in conjunction:
            _check(term)
    return [list(conjunction) for conjunction in filters]


def _check(term: Any) -> None:
    if not isinstance(term, (tuple, list)) or len(term) != 3:
        raise TypeError(f"filters: {term!r} is not (column, op, value)")
    column, op, _ = term
    if not isinstance(column, str) or not column:
        raise TypeError(f"filters: {term!r}: the column is {column!r}, wanted a name")
    if op not in OPS:
        raise ValueError(f"filters: {term!r}: the op is {op!r}, wanted one of {', '.join(OPS)}")


def renamed(filters: list[list[Term]], name_of: Callable[[str], str]) -> list[list[Term]]:
    """The filters with other names of columns."""
    return [[(name_of(column), op, value) for column, op, value in terms] for terms in filters]


def encode(filters: list[list[Term]]) -> list[bytes]:
    """The words that core/columnar/filter.h takes.

    Raises:
      TypeError, ValueError: a value that no column can be compared with.
    """
    words = []
    for number, terms in enumerate(filters):
        for column, op, value in terms:
            try:
                values = _set(value) if op in ("in", "not in") else [_value(value)]
            except (TypeError, ValueError) as error:
                raise type(error)(f"filters: {(column, op, value)!r}: {error}") from None
            op = "==" if op == "=" else op
            words += [str(number), column, op, str(len(values)), *values]
    return [word if isinstance(word, bytes) else word.encode("utf-8", "surrogateescape") for word in words]


def _set(values: Any) -> list[bytes]:
    """The values behind 'in', of one kind: integers beside floating-point numbers become such."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"the value is {values!r}, wanted a list, tuple or set")
    values = list(values)
    encoded = [b"n" if value is None else _value(value) for value in values]
    kinds = {word[:1] for word in encoded} - {b"n"}
    if len(kinds) > 1 and kinds <= {b"i", b"u", b"f"}:
        if b"f" in kinds:
            encoded = [b"n" if value is None else _value(float(value)) for value in values]
        elif any(word[:2] == b"i-" for word in encoded):
            raise ValueError("holds both negative numbers and numbers from 2^63 on, which no column does")
        else:
            encoded = [word if word == b"n" else b"u" + word[1:] for word in encoded]
    elif len(kinds) > 1:
        raise TypeError("holds values of several types, wanted one")
    return encoded


def _value(value: Any) -> bytes:
    """A letter for the value's kind, and its text."""
    if isinstance(value, np.datetime64):
        value = value if np.datetime_data(value.dtype)[0] == "D" else value.astype("datetime64[us]")
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return b"b" + str(value).lower().encode()
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"the value is {value}, wanted one of 64 bits")
        return (b"i" if value < 2**63 else b"u") + str(value).encode()
    if isinstance(value, float):
        return b"f" + repr(value).encode()
    if isinstance(value, str):
        return b"s" + value.encode()
    if isinstance(value, bytes):
        return b"y" + value
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return b"t" + value.isoformat(" ").encode()
        return b"z" + value.astimezone(datetime.timezone.utc).replace(tzinfo=None).isoformat(" ").encode() + b"Z"
    if isinstance(value, datetime.date):
        return b"d" + value.isoformat().encode()
    if value is None:
        raise ValueError("the value is None, which no row is equal to or differs from; nulls are found by 'in' [None]")
    raise TypeError(
        f"the value is of type {type(value).__name__}, wanted bool, int, float, str, bytes, date or datetime"
    )
