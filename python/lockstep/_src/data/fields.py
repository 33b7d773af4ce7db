"""Fields: the columns of a file that are read, with their types and shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lockstep._src.engine import library

# The type of a file's column whose values are all null: pandas stores a column of None in it.
_NULL = "null"
_NO_TYPE = "all its values are null and have no type; read it with a Field that has a dtype and a default_value"


@dataclasses.dataclass(frozen=True, init=False)
class Field:
    """A column to read. Attributes that are None are taken from the file.

    Args:
      name: the column's name.
      dtype: type of single values. It must be the file's type: nothing is converted.
      ragged_rank: number of nested lists of any length around a value: 1 for a list column, 0 for a plain one.
      shape: shape of one item of the innermost lists, or of a row if `ragged_rank` is 0; all dimensions must be known.
        For a column of fixed-size lists it is their size. A list column can be read with this shape if all its lists
        have that length.
      default_value: replaces a null value, and the values of a column that a file does not have. In a list column it
        replaces nulls among the values; a null list and an absent column are read as empty lists. Without a default,
        each of these cases is an error.

    Raises:
      ValueError: `name` is empty, `ragged_rank` is negative, or `shape` has an unknown dimension or a zero.
    """

    name: str
    dtype: tf.DType | None
    ragged_rank: int | None
    shape: tf.TensorShape | None
    default_value: Any

    def __init__(
        self,
        name: str,
        dtype: Any = None,
        ragged_rank: int | None = None,
        shape: Any = None,
        default_value: Any = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"field: name is {name!r}, wanted the name of a column")
        if ragged_rank is not None and ragged_rank < 0:
            raise ValueError(f"field {name!r}: ragged_rank is {ragged_rank}, wanted 0 or more")
        if shape is not None:
            shape = tf.TensorShape(shape)
            if not shape.is_fully_defined() or 0 in shape.as_list():
                raise ValueError(f"field {name!r}: shape is {shape}, wanted only known dimensions of 1 or more")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "dtype", None if dtype is None else tf.as_dtype(dtype))
        object.__setattr__(self, "ragged_rank", ragged_rank)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "default_value", default_value)

    @property
    def incomplete(self) -> bool:
        """True if some attribute must be taken from a file."""
        return self.dtype is None or self.ragged_rank is None or self.shape is None

    def default_bytes(self) -> bytes:
        """Returns the default in the reader's form: the bytes of one value, or no bytes without a default.

        Raises:
          ValueError: the default is not a single value of the field's type.
        """
        if self.default_value is None:
            return b""
        if self.dtype is None:
            raise ValueError(f"field {self.name!r}: default_value is {self.default_value!r}, wanted a dtype as well")
        if self.dtype == tf.string and isinstance(self.default_value, (str, bytes)):
            return tf.compat.as_bytes(self.default_value)
        value = np.asarray(self.default_value)
        wanted: np.dtype[Any] = np.dtype(self.dtype.as_numpy_dtype)
        fits = value.shape == () and np.can_cast(value.dtype, wanted, "same_kind")
        if value.shape == () and value.dtype.kind in "iu" and wanted.kind in "iu":
            fits = bool(np.iinfo(wanted).min <= value <= np.iinfo(wanted).max)
        if not fits or self.dtype == tf.string:
            raise ValueError(
                f"field {self.name!r}: default_value is {self.default_value!r}, wanted one {self.dtype.name}"
            )
        return value.astype(wanted).tobytes()


class Form(NamedTuple):
    """The attributes of a field that describe its tensors."""

    dtype: tf.DType
    ragged_rank: int
    shape: list[int]


def form_of(field: Field) -> Form:
    """Returns the form of a field that `resolve` returned; raises ValueError for an incomplete one."""
    if field.dtype is None or field.ragged_rank is None or field.shape is None:
        raise ValueError(f"{field} is incomplete, wanted its dtype, ragged_rank and shape")
    return Form(field.dtype, field.ragged_rank, field.shape.as_list())


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _columns(described: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the columns of a file by name. A column that no field can name gets an "error", like one without a form.

    Only a column that is selected has an effect: the others may have any name and any type.
    """
    columns: dict[str, dict[str, Any]] = {}
    for column in described["columns"]:
        name = column["name"]
        if name in columns:
            column = {"name": name, "error": "there are several columns of this name"}
        elif not name:
            column = {"name": name, "error": "its name is empty"}
        elif not _is_text(name):
            column = {"name": name, "error": "its name is not UTF-8"}
        columns[name] = column
    return columns


def _reason(column: dict[str, Any]) -> str:
    """Returns why a column cannot be read without a field that describes it; empty if it can."""
    return column.get("error") or (_NO_TYPE if column["dtype"] == _NULL else "")


def _completed(field: Field, file: str, columns: dict[str, dict[str, Any]]) -> Field:
    """Returns the field, with the attributes that are None taken from the file."""
    column = columns.get(field.name)
    if column is None:
        if field.default_value is not None and field.dtype is not None:
            return dataclasses.replace(field, ragged_rank=field.ragged_rank or 0, shape=field.shape or [])
        names = ", ".join(columns)
        hint = "" if field.default_value is None else "; a field with a default_value that no file has needs a dtype"
        raise tf.errors.NotFoundError(None, None, f"file '{file}' has no column '{field.name}': it has {names}{hint}")
    if "error" in column:
        raise tf.errors.UnimplementedError(None, None, f"file '{file}' column '{field.name}': {column['error']}")
    shape = column["shape"] if field.shape is None else field.shape.as_list()
    ragged_rank = field.ragged_rank
    if column["dtype"] == _NULL:
        if field.dtype is None:
            raise tf.errors.UnimplementedError(None, None, f"file '{file}' column '{field.name}': {_NO_TYPE}")
        return dataclasses.replace(
            field, ragged_rank=column["ragged_rank"] if ragged_rank is None else ragged_rank, shape=shape
        )
    more_dimensions = len(shape) - len(column["shape"])
    if ragged_rank is None or (ragged_rank == column["ragged_rank"] and more_dimensions > 0):
        # A dimension that the file does not fix stands for lists that all have this length. HybridBackend's programs
        # give the file's ragged_rank in addition to such a shape.
        ragged_rank = max(0, column["ragged_rank"] - more_dimensions)
    return dataclasses.replace(field, dtype=field.dtype or column["dtype"], ragged_rank=ragged_rank, shape=shape)


def _unknown_file(field: Field) -> Field:
    """Returns the field completed without a file.

    Raises:
      ValueError: the field has no dtype or no ragged_rank.
    """
    if field.dtype is None or field.ragged_rank is None:
        raise ValueError(
            f"filenames are not known before the dataset runs: field {field.name!r} needs a dtype and a ragged_rank "
            "(every field needs a dtype, a ragged_rank and, if it is of fixed-size lists, a shape)"
        )
    return dataclasses.replace(field, shape=field.shape or [])


def _as_in_file(field: Field, columns: dict[str, Any]) -> Field:
    """Returns the field with the name that the file has for it; upper and lower case are the same."""
    if field.name in columns:
        return field
    names = [name for name in columns if name.casefold() == field.name.casefold()]
    if len(names) > 1:
        raise ValueError(f"field {field.name!r} may be any of {', '.join(map(repr, names))}")
    return dataclasses.replace(field, name=names[0]) if names else field


def name_in_file(name: str, filenames: Sequence[str]) -> str:
    """Returns the first file's name for this column, ignoring case, or `name` if the file has no such column."""
    return _as_in_file(Field(name), _columns(library.describe_parquet(filenames))).name


def resolve(
    fields: Iterable[Any] | None,
    filenames: Sequence[str] | None,
    *,
    ignore_case: bool = False,
) -> list[Field]:
    """Returns complete fields in the given order, or in the file's order if `fields` is None.

    Args:
      fields: names and `Field`s; None for all readable columns of the first file.
      filenames: files, folders or patterns, of which the first file is described; None if they are known only when
        the dataset runs.
      ignore_case: finds columns whose names differ in case; the fields get the file's names.

    Raises:
      ValueError: a field is given twice, or is incomplete and `filenames` is None.
      tf.errors.OpError: the first file does not exist, cannot be read, or has no such column.
    """
    if fields is not None:
        if isinstance(fields, (str, Field)):
            fields = [fields]
        fields = [field if isinstance(field, Field) else Field(field) for field in fields]
        if not fields:
            raise ValueError("fields is empty, wanted at least one, or None for all")
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"field {name!r} is given twice")
    if filenames is None:
        if fields is None:
            raise ValueError("filenames are not known before the dataset runs: fields must be given")
        fields = [_unknown_file(field) for field in fields]
    elif fields is None or ignore_case or any(field.incomplete or field.shape.rank for field in fields):
        described = library.describe_parquet(filenames)
        file, columns = described["file"], _columns(described)
        if fields is None:
            reasons = {name: _reason(column) for name, column in columns.items()}
            readable = [name for name, reason in reasons.items() if not reason]
            for name, reason in reasons.items():
                if reason:
                    tf.get_logger().warning("file '%s' column '%s' is left out: %s", file, name, reason)
            if not readable:
                raise tf.errors.UnimplementedError(None, None, f"file '{file}' has no column that can be read")
            fields = [Field(name) for name in readable]
        if ignore_case:
            fields = [_as_in_file(field, columns) for field in fields]
        fields = [
            _completed(field, file, columns) if field.incomplete or field.shape.rank else field for field in fields
        ]
    return fields
