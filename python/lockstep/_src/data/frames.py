"""Values of a column as HybridBackend's programs know them, and what turns them into tensors and sparse tensors.

Follows HybridBackend's `hb.data.DataFrame`. Where that gives wrong rows, these do what it documents: a default has as
many rows as the batch that it joins, and restored duplicates may differ in number from block to block.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.data.fields import Field

Transformation = Callable[[tf.data.Dataset], tf.data.Dataset]


class Value(collections.namedtuple("DataFrameValue", ["values", "nested_row_splits"])):
    """A column of lists: values one behind the other, and where the lists begin.

    Args:
      values: [V] + shape; what the innermost lists hold.
      nested_row_splits: of each level of lists, from the outside, the positions [lists + 1] of the lists in the level
        below. None, or none of them: the column has no lists, and `values` is what it is.
    """

    __slots__ = ()

    def __new__(cls, values: Any, nested_row_splits: Iterable[Any] | None = None) -> Value:
        return super().__new__(cls, values, () if nested_row_splits is None else tuple(nested_row_splits))

    def to_list(self) -> list[Any]:
        """Nested lists; `values` and `nested_row_splits` must be arrays, as a session returns them."""
        rows = self.values.tolist()
        for splits in reversed(self.nested_row_splits):
            rows = [rows[begin:end] for begin, end in zip(splits[:-1], splits[1:], strict=True)]
        return rows

    def to_ragged(self) -> tf.Tensor | tf.RaggedTensor:
        """As a `tf.RaggedTensor`, or the tensor itself where there are no lists."""
        if not self.nested_row_splits:
            return self.values
        return tf.RaggedTensor.from_nested_row_splits(self.values, self.nested_row_splits, validate=False)

    def to_tensor(self, name: str | None = None) -> tf.Tensor:
        """Dense, lists filled up with zeros (or empty strings) to the longest of the batch."""
        ragged = self.to_ragged()
        return ragged.to_tensor(name=name) if self.nested_row_splits else ragged

    def to_sparse(self, name: str | None = None) -> tf.Tensor | tf.SparseTensor:
        """Sparse, of dense shape [rows, longest list, ...]; a tensor where there are no lists."""
        ragged = self.to_ragged()
        return ragged.to_sparse(name=name) if self.nested_row_splits else ragged


def _ragged(value: Any) -> Any:
    return value.to_ragged() if isinstance(value, Value) else value


def _padded(dense: tf.Tensor, pad: Sequence[int | None]) -> tf.Tensor:
    """`dense` filled up with zeros to a shape, with or without the dimension of the rows; None and -1 leave it.

    No rows are made up: the last batch keeps its own, whatever the shape says of their number.
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
    raise ValueError(f"parse: {value!r} is no column; wanted a tensor, a ragged tensor or a DataFrame.Value")


def _rows(value: Any) -> tf.Tensor:
    value = _ragged(value)
    if isinstance(value, tf.RaggedTensor):
        return value.nrows(tf.int32)
    if isinstance(value, tf.SparseTensor):
        return tf.cast(value.dense_shape[0], tf.int32)
    return tf.shape(value)[0]


def _default(field: Field, rows: Any) -> tf.Tensor | tf.SparseTensor:
    """`rows` rows of a field's default."""
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
    row = ragged[0]
    return row.to_sparse() if isinstance(row, tf.RaggedTensor) else _all_elements(row)


def _all_elements(row: tf.Tensor) -> tf.SparseTensor:
    count = tf.shape(row, tf.int64)[0]
    return tf.SparseTensor(tf.range(count)[:, tf.newaxis], row, [count])


def _do_not_convert(function: Callable[..., Any]) -> Callable[..., Any]:
    return tf.autograph.experimental.do_not_convert(function)


class DataFrame:
    """A table's columns: how they are described, what they look like, and what they can be turned into."""

    Field = Field
    Value = Value

    @staticmethod
    @_do_not_convert
    def parse(features: Any, pad: Any = False) -> Any:
        """Columns of lists as sparse or dense tensors; other columns as they are.

        Args:
          features: a column, or a dict, tuple or list of columns.
          pad: False for sparse tensors. True for dense ones, filled up with zeros to the longest list of the batch. A
            shape fills up to that: with the dimension of the rows or without, None or -1 for what stays. A dict gives
            one of these for each name.

        Raises:
          ValueError: something is no column, or a dict of pads names a column that there is not.
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
        """`parse` to sparse tensors, under its older name."""
        return DataFrame.parse(features)

    @staticmethod
    @_do_not_convert
    def populate_defaults(features: dict[str, Any], all_fields: Iterable[Field], batch_size: Any = None) -> Any:
        """The features, with defaults of those fields that have one and are not among them.

        Features that are none of the fields come first; all others in the order of the fields.

        Args:
          features: columns of a batch.
          all_fields: the fields; `default_value` of one is a row: a value, an array or a sparse tensor.
          batch_size: rows where there are no other features; else the batch's own number of rows counts.
        """
        if not isinstance(features, dict):
            raise ValueError(f"populate_defaults: features are {type(features).__name__}, wanted a dict")
        all_fields = list(all_fields)
        absent = [field for field in all_fields if field.name not in features and field.default_value is not None]
        if not absent:
            return dict(features)
        if not features and batch_size is None:
            raise ValueError("populate_defaults: there are no features to count rows by, and no batch_size")
        rows = _rows(next(iter(features.values()))) if features else batch_size
        complete = {**features, **{field.name: _default(field, rows) for field in absent}}
        order = [field.name for field in all_fields if field.name in complete]
        others = [name for name in features if name not in order]
        return {name: complete[name] for name in (*others, *order)}

    @staticmethod
    @_do_not_convert
    def unbatch_and_to_sparse(features: Any) -> Any:
        """Batches of one row as that row: columns of lists as sparse tensors without the dimension of the rows."""
        if isinstance(features, dict):
            return {name: DataFrame.unbatch_and_to_sparse(value) for name, value in features.items()}
        return _row_to_sparse(features)


def parse(num_parallel_calls: int | None = None, pad: Any = False) -> Transformation:
    """For `dataset.apply`: `DataFrame.parse` of each element."""
    return lambda dataset: dataset.map(lambda features: DataFrame.parse(features, pad), num_parallel_calls)


def populate_defaults(
    all_fields: Iterable[Field], batch_size: Any = None, num_parallel_calls: int | None = None
) -> Transformation:
    """For `dataset.apply`: `DataFrame.populate_defaults` of each element."""
    all_fields = list(all_fields)
    return lambda dataset: dataset.map(
        lambda features: DataFrame.populate_defaults(features, all_fields, batch_size), num_parallel_calls
    )


def unbatch_and_to_sparse(num_parallel_calls: int | None = None) -> Transformation:
    """For `dataset.apply`: `DataFrame.unbatch_and_to_sparse` of each element."""
    return lambda dataset: dataset.map(DataFrame.unbatch_and_to_sparse, num_parallel_calls)


def deduplicate(
    key_idx_field_names: Sequence[str],
    value_field_names: Sequence[Sequence[str]],
    fields: Iterable[Field] | None = None,
) -> Transformation:
    """For `dataset.apply`: puts columns together again that are stored without duplicates.

    A row of such a file is a block of rows. An index column holds, for each row of the block, which of the block's
    distinct values it has; the value columns hold a list of those. Afterwards a batch has the rows of all its blocks,
    one behind the other, and the index columns are gone.

    Args:
      key_idx_field_names: names of index columns.
      value_field_names: for each of them the names of the columns that it belongs to.
      fields: the dataset's fields, of which all these names must be; None takes the dataset's own.

    Raises:
      ValueError: when applied: a name that the dataset does not have.
      tf.errors.InvalidArgumentError: in a batch: an index beyond its block's values.
    """
    if len(key_idx_field_names) != len(value_field_names):
        raise ValueError(
            f"deduplicate: {len(key_idx_field_names)} index columns and {len(value_field_names)} lists of value "
            "columns, wanted as many"
        )

    @_do_not_convert
    def restore(features: dict[str, Any]) -> dict[str, Any]:
        restored = {name: value for name, value in features.items() if name not in key_idx_field_names}
        for key, names in zip(key_idx_field_names, value_field_names, strict=True):
            for name in names:
                restored[name] = _restored(_ragged(features[name]), _ragged(features[key]), name)
        return restored

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        known = {field.name for field in fields} if fields is not None else set(dataset.element_spec)
        for name in [*key_idx_field_names, *(name for names in value_field_names for name in names)]:
            if name not in known:
                raise ValueError(f"deduplicate: there is no field {name!r}: there are {', '.join(sorted(known))}")
        return dataset.map(restore)

    return apply


def _restored(values: Any, index: Any, name: str) -> Any:
    """Rows of all blocks: `values` [blocks, (distinct), ...] at `index` [blocks, (rows)]."""
    if not isinstance(values, tf.RaggedTensor) or index.shape.rank != 2:
        raise ValueError(f"deduplicate: field {name!r} must hold a list for each block, and its index column one level")
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
