"""The values of a column in HybridBackend's form, and functions that turn them into dense and sparse tensors.

The functions follow HybridBackend's `hb.data.DataFrame`. In two cases HybridBackend gives wrong rows; these functions
then do what it documents. A default gets as many rows as the batch to which it is added. Restored duplicates may differ
in number from block to block.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from lockstep._src.data.fields import Field

Transformation = Callable[[tf.data.Dataset], tf.data.Dataset]


class Value(collections.namedtuple("DataFrameValue", ["values", "nested_row_splits"])):
    """A column of lists: all values in one tensor, and the positions at which the lists begin.

    Args:
      values: [V] + shape; the items of the innermost lists, one list after the other.
      nested_row_splits: for each level of lists, from the outermost one, the positions [lists + 1] of its lists in the
        next level. None or empty for a column without lists; `values` is then the whole column.
    """

    __slots__ = ()

    def __new__(cls, values: Any, nested_row_splits: Iterable[Any] | None = None) -> Value:
        return super().__new__(cls, values, () if nested_row_splits is None else tuple(nested_row_splits))

    def to_list(self) -> list[Any]:
        """Returns nested lists; `values` and `nested_row_splits` must be arrays, as a session returns them."""
        rows = self.values.tolist()
        for splits in reversed(self.nested_row_splits):
            rows = [rows[begin:end] for begin, end in zip(splits[:-1], splits[1:], strict=True)]
        return rows

    def to_ragged(self) -> tf.Tensor | tf.RaggedTensor:
        """Returns the column as a `tf.RaggedTensor`, or as the tensor itself if it has no lists."""
        if not self.nested_row_splits:
            return self.values
        return tf.RaggedTensor.from_nested_row_splits(self.values, self.nested_row_splits, validate=False)

    def to_tensor(self, name: str | None = None) -> tf.Tensor:
        """Returns a dense tensor; shorter lists are padded with zeros (or empty strings) to the batch's longest."""
        ragged = self.to_ragged()
        return ragged.to_tensor(name=name) if self.nested_row_splits else ragged

    def to_sparse(self, name: str | None = None) -> tf.Tensor | tf.SparseTensor:
        """Returns a sparse tensor of dense shape [rows, longest list, ...], or the tensor if it has no lists."""
        ragged = self.to_ragged()
        return ragged.to_sparse(name=name) if self.nested_row_splits else ragged


def _ragged(value: Any) -> Any:
    return value.to_ragged() if isinstance(value, Value) else value


def _padded(dense: tf.Tensor, pad: Sequence[int | None]) -> tf.Tensor:
    """Pads `dense` with zeros to a shape that includes the dimension of the rows or not.

    A size of None or -1 leaves that dimension as it is. Rows are never added: the last batch keeps its number of rows,
    even if the shape gives another one.
    """
    pad = list(pad)
    if len(pad) == dense.shape.rank - 1:
        pad = [None, *pad]
    if len(pad) != dense.shape.rank:
        raise ValueError(f"pad is {pad}, wanted {dense.shape.rank} dimensions, or {dense.shape.rank - 1} without rows")
    pad[0] = None
    shape = tf.shape(dense)
    missing = [0 if size in (None, -1) else size - shape[axis] for axis, size in enumerate(pad)]
    padded = tf.pad(dense, [[0, count] for count in missing])
    return tf.ensure_shape(padded, [None if size == -1 else size for size in pad])


def _parse(value: Any, pad: Any) -> Any:
    if isinstance(value, (Value, tf.RaggedTensor)):
        ragged = _ragged(value)
        if not isinstance(ragged, tf.RaggedTensor):
            return ragged
        if pad is None or pad is False:
            return ragged.to_sparse()
        dense = ragged.to_tensor()
        return dense if pad is True else _padded(dense, pad)
    if isinstance(value, (tf.Tensor, tf.SparseTensor)):
        return value
    raise ValueError(f"parse: {value!r} is not a column; wanted a tensor, a ragged tensor or a DataFrame.Value")


def _rows(value: Any) -> tf.Tensor:
    value = _ragged(value)
    if isinstance(value, tf.RaggedTensor):
        return value.nrows(tf.int32)
    if isinstance(value, tf.SparseTensor):
        return tf.cast(value.dense_shape[0], tf.int32)
    return tf.shape(value)[0]


def _default(field: Field, rows: Any) -> tf.Tensor | tf.SparseTensor:
    """Returns `rows` rows of a field's default."""
    default = field.default_value
    if not isinstance(default, tf.SparseTensor):
        default = tf.convert_to_tensor(default, field.dtype)
        return tf.repeat(default[tf.newaxis], rows, axis=0)
    count = tf.shape(default.indices)[0]
    row = tf.repeat(tf.range(tf.cast(rows, tf.int64)), count)[:, tf.newaxis]
    return tf.SparseTensor(
        tf.concat([row, tf.tile(default.indices, [rows, 1])], 1),
        tf.tile(default.values, [rows]),
        tf.concat([tf.cast([rows], tf.int64), default.dense_shape], 0),
    )


def _row_to_sparse(value: Any) -> Any:
    ragged = _ragged(value)
    if not isinstance(ragged, tf.RaggedTensor):
        return ragged
    batch = ragged[:1].to_sparse()
    return tf.SparseTensor(batch.indices[:, 1:], batch.values, batch.dense_shape[1:])


def _do_not_convert(function: Callable[..., Any]) -> Callable[..., Any]:
    return tf.autograph.experimental.do_not_convert(function)


_Field: TypeAlias = Field  # inside of the class, `Field` is its attribute


class DataFrame:
    """A namespace for the columns of a table: their `Field`s, their `Value`s, and functions that convert them."""

    Field = Field
    Value = Value

    @staticmethod
    @_do_not_convert
    def parse(features: Any, pad: Any = False) -> Any:
        """Converts columns of lists to sparse or dense tensors; other columns stay unchanged.

        Args:
          features: a column, or a dict, tuple or list of columns.
          pad: False for sparse tensors. True for dense tensors that are padded with zeros to the longest list of the
            batch. A shape for dense tensors that are padded to this shape; it may include the dimension of the rows,
            and None or -1 leaves a dimension as it is. A dict gives one of these for each column's name.

        Raises:
          ValueError: a value is not a column, or a dict of pads names a column that does not exist.
        """
        if isinstance(features, dict):
            pads = pad if isinstance(pad, dict) else dict.fromkeys(features, pad)
            if unknown := [name for name in pads if name not in features]:
                raise ValueError(f"parse: pad has {unknown}, wanted names of columns: {', '.join(features)}")
            return {name: DataFrame.parse(value, pads.get(name, False)) for name, value in features.items()}
        if isinstance(features, (tuple, list)) and not isinstance(features, Value):
            return type(features)(DataFrame.parse(value, pad) for value in features)
        return _parse(features, pad)

    @staticmethod
    def to_sparse(features: Any) -> Any:
        """Converts columns of lists to sparse tensors: an older name of `parse`."""
        return DataFrame.parse(features)

    @staticmethod
    @_do_not_convert
    def populate_defaults(features: dict[str, Any], all_fields: Iterable[_Field], batch_size: Any = None) -> Any:
        """Returns the features and, for each absent field with a default, a column that repeats its default.

        Features that are not among the fields come first; all others follow in the order of the fields.

        Args:
          features: the columns of a batch, by name.
          all_fields: the fields. The `default_value` of a field is one row: a value, an array or a sparse tensor.
          batch_size: the number of rows if `features` is empty; otherwise the number of rows of the batch is used.

        Raises:
          ValueError: `features` is not a dict, or `features` is empty and `batch_size` is None.
        """
        if not isinstance(features, dict):
            raise ValueError(f"populate_defaults: features are {type(features).__name__}, wanted a dict")
        all_fields = list(all_fields)
        absent = [field for field in all_fields if field.name not in features and field.default_value is not None]
        if not absent:
            return dict(features)
        if not features and batch_size is None:
            raise ValueError("populate_defaults: got no features and no batch_size, wanted one of them to count rows")
        rows = _rows(next(iter(features.values()))) if features else batch_size
        complete = {**features, **{field.name: _default(field, rows) for field in absent}}
        order = [field.name for field in all_fields if field.name in complete]
        others = [name for name in features if name not in order]
        return {name: complete[name] for name in (*others, *order)}

    @staticmethod
    @_do_not_convert
    def unbatch_and_to_sparse(features: Any) -> Any:
        """Returns the row of a batch of one row. Columns of lists become sparse tensors without the row dimension."""
        if isinstance(features, dict):
            return {name: DataFrame.unbatch_and_to_sparse(value) for name, value in features.items()}
        return _row_to_sparse(features)


def parse(num_parallel_calls: int | None = None, pad: Any = False) -> Transformation:
    """Returns a transformation for `dataset.apply` that applies `DataFrame.parse` to each element."""
    return lambda dataset: dataset.map(lambda features: DataFrame.parse(features, pad), num_parallel_calls)


def populate_defaults(
    all_fields: Iterable[Field], batch_size: Any = None, num_parallel_calls: int | None = None
) -> Transformation:
    """Returns a transformation for `dataset.apply` that applies `DataFrame.populate_defaults` to each element."""
    all_fields = list(all_fields)
    return lambda dataset: dataset.map(
        lambda features: DataFrame.populate_defaults(features, all_fields, batch_size), num_parallel_calls
    )


def unbatch_and_to_sparse(num_parallel_calls: int | None = None) -> Transformation:
    """Returns a transformation for `dataset.apply` that applies `DataFrame.unbatch_and_to_sparse` to each element."""
    return lambda dataset: dataset.map(DataFrame.unbatch_and_to_sparse, num_parallel_calls)


def deduplicate(
    key_idx_field_names: Sequence[str],
    value_field_names: Sequence[Sequence[str]],
    fields: Iterable[Field] | None = None,
) -> Transformation:
    """Returns a transformation for `dataset.apply` that restores columns that are stored without duplicates.

    One row of such a file is a block of rows. A value column holds the list of the block's distinct values. An index
    column holds, for each row of the block, the position of its value in that list. A restored batch has the rows of
    all its blocks, one block after the other, and no index columns.

    Args:
      key_idx_field_names: names of index columns.
      value_field_names: for each index column, the names of the value columns that it belongs to.
      fields: the dataset's fields, which must include all these names; None for the dataset's own columns.

    Raises:
      ValueError: the two lists differ in length; or, when applied, the dataset does not have one of the names.
      tf.errors.InvalidArgumentError: in a batch, an index lies outside its block's values.
    """
    if len(key_idx_field_names) != len(value_field_names):
        raise ValueError(
            f"deduplicate: {len(key_idx_field_names)} index columns and {len(value_field_names)} lists of value "
            "columns, wanted the same number of both"
        )

    names_of_fields = None if fields is None else {field.name for field in fields}

    @_do_not_convert
    def restore(features: dict[str, Any]) -> dict[str, Any]:
        restored = {name: value for name, value in features.items() if name not in key_idx_field_names}
        for key, names in zip(key_idx_field_names, value_field_names, strict=True):
            for name in names:
                restored[name] = _restored(_ragged(features[name]), _ragged(features[key]), name)
        return restored

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        known = set(dataset.element_spec) if names_of_fields is None else names_of_fields
        for name in [*key_idx_field_names, *(name for names in value_field_names for name in names)]:
            if name not in known:
                raise ValueError(f"deduplicate: field {name!r} does not exist; there are {', '.join(sorted(known))}")
        return dataset.map(restore)

    return apply


def _restored(values: Any, index: Any, name: str) -> Any:
    """Returns the rows of all blocks: `values` [blocks, (distinct), ...] at `index` [blocks, (rows)]."""
    if not isinstance(values, tf.RaggedTensor) or index.shape.rank != 2:
        raise ValueError(f"deduplicate: field {name!r} must hold a list for each block, its index column one level")
    if not isinstance(index, tf.RaggedTensor):
        index = tf.RaggedTensor.from_tensor(index)
    rows = index.row_lengths()
    flat = tf.cast(index.flat_values, tf.int64)
    sizes = tf.repeat(values.row_lengths(), rows)
    message = f"field {name!r}: an index lies outside of its block's values"
    checks = [
        tf.debugging.assert_non_negative(flat, message),
        tf.debugging.assert_less(flat, tf.cast(sizes, tf.int64), message),
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        places = flat + tf.cast(tf.repeat(values.row_splits[:-1], rows), tf.int64)
    restored = tf.gather(values.values, places)
    if isinstance(restored, tf.RaggedTensor):
        return Value(restored.flat_values, restored.nested_row_splits)
    return restored
