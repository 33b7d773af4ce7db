"""Filters select the rows of files that are read. They are written as in pyarrow.

`[(column, op, value), ...]` keeps the rows for which all these terms are true. A list of such lists keeps the rows for
which all terms of at least one list are true. Form and meaning are as for `filters=` of `pyarrow.parquet.read_table`,
because Arrow compares the values.
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
    """Returns the filters as a list of lists of terms; the list is empty without filters.

    Raises:
      TypeError: `filters` is neither a list of terms nor a list of lists of terms, or a column's name is not a string.
      ValueError: `filters` is an empty list, or an op is unknown.
    """
    if filters is None:
        return []
    if isinstance(filters, (str, bytes)) or not isinstance(filters, Iterable):
        raise TypeError(f"filters is {filters!r}, wanted a list of (column, op, value), or a list of such lists")
    given: list[Any] = list(filters)
    if given and all(isinstance(term, tuple) for term in given):
        given = [given]
    if not given:
        raise ValueError("filters is empty, wanted at least one (column, op, value), or None for all rows")
    for conjunction in given:
        if isinstance(conjunction, (str, bytes)) or not isinstance(conjunction, Sequence) or not conjunction:
            raise TypeError(f"filters: {conjunction!r} is not a list of (column, op, value)")
        for term in conjunction:
            _check(term)
    return [list(conjunction) for conjunction in given]


def _check(term: Any) -> None:
    if not isinstance(term, (tuple, list)) or len(term) != 3:
        raise TypeError(f"filters: {term!r} is not (column, op, value)")
    column, op, _ = term
    if not isinstance(column, str) or not column:
        raise TypeError(f"filters: {term!r}: the column is {column!r}, wanted a name")
    if op not in OPS:
        raise ValueError(f"filters: {term!r}: the op is {op!r}, wanted one of {', '.join(OPS)}")


def renamed(filters: list[list[Term]], name_of: Callable[[str], str]) -> list[list[Term]]:
    """Returns the filters with each column's name replaced by `name_of(name)`."""
    return [[(name_of(column), op, value) for column, op, value in terms] for terms in filters]


def encode(filters: list[list[Term]]) -> list[bytes]:
    """Returns the words that core/columnar/column/filter.h takes.

    Raises:
      TypeError, ValueError: no column can be compared with one of the values.
    """
    words: list[str | bytes] = []
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
    """Encodes the values of 'in' and 'not in' as one kind: integers become floats if any of the values is a float."""
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
    """Returns a letter for the value's kind, followed by its text."""
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
