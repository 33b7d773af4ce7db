"""HybridBackend's datasets of tables: batches of columns, and a table of rows that is batched later.

The classes follow HybridBackend's `hb.data.Dataset` and `hb.data.ParquetDataset`; docs/input.md lists the differences.
Both are `tf.compat.v1.data.Dataset`s, in eager mode too, so that they have the methods of both TensorFlow versions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from lockstep._src.data import frames
from lockstep._src.data.checksums import Checksums
from lockstep._src.data.fields import Field, name_in_file, resolve
from lockstep._src.data.filters import Filters, conjunctions, renamed
from lockstep._src.data.parquet import Reading, tensor_specs
from lockstep._src.data.rebatch import RebatchDataset, adapt_to_mode

# The number of rows that are read at once when a program iterates over a table row by row.
_ROWS_AT_ONCE = 256


def _value_spec(shaped: frozenset[str]) -> Callable[[Field, int | None], Any]:
    """Returns a function from a field to its spec: a `Value` if it holds lists or is in `shaped`, else a tensor."""

    def spec(field: Field, rows: int | None) -> Any:
        values, *splits = tensor_specs(field, rows)
        return frames.Value(values, splits) if splits or field.name in shaped else values

    return spec


def _is_scalar(value: Any) -> bool:
    return not tf.is_tensor(value) and not isinstance(value, tf.SparseTensor) and np.ndim(value) == 0


@dataclasses.dataclass(frozen=True)
class _Table:
    """The columns of a table and its files. A column is read from the files, or consists of its default only."""

    filenames: Any
    fields: list[Field]  # all fields
    constants: list[Field]  # fields whose default is not a single value; the first file does not have them
    shaped: frozenset[str]  # names of the fields for which the program gave a shape
    reading: Reading

    @classmethod
    def of(
        cls,
        filenames: Any,
        fields: Iterable[str | Field] | None,
        ignore_case: bool,
        field_map_fn: Callable[[Sequence[Field]], Sequence[Field]] | None,
        reading: Reading,
    ) -> _Table:
        names = None
        if not isinstance(filenames, dataset_ops.DatasetV2) and not tf.is_tensor(filenames):
            filenames = (
                [filenames] if isinstance(filenames, (str, bytes)) or hasattr(filenames, "__fspath__") else filenames
            )
            filenames = names = list(filenames)
        given = [f if isinstance(f, Field) else Field(f) for f in fields or ()]
        order = given
        constants = [field for field in given if not _is_scalar(field.default_value)]
        in_files = [field for field in given if _is_scalar(field.default_value)]
        read = resolve(None if fields is None else in_files, names, ignore_case=ignore_case)
        if ignore_case and names is not None and reading.filters:
            filters = renamed(conjunctions(reading.filters), lambda column: name_in_file(column, names))
            reading = dataclasses.replace(reading, filters=filters)
        if field_map_fn is not None:
            read = list(field_map_fn(read))
            order = []
        following = iter(read)
        complete = [field if field in constants else next(following) for field in order]
        complete = complete or [*read, *constants]
        shaped = frozenset(field.name for field in in_files if field.shape)
        return cls(filenames, complete, constants, shaped, dataclasses.replace(reading, fields=read))

    def batches(self, batch_size: Any, drop_remainder: bool) -> Any:
        """Returns a dataset of batches of tensors and `Value`s."""
        reading = dataclasses.replace(self.reading, drop_remainder=drop_remainder)
        dataset, _ = reading.columns(self.filenames, batch_size, _value_spec(self.shaped))
        return adapt_to_mode(dataset)


class FrameDataset(dataset_ops.DatasetV1Adapter):
    """A dataset of batches of Parquet files: HybridBackend's `hb.data.ParquetDataset`.

    Columns of lists are `DataFrame.Value`s.

    Args:
      filenames, batch_size, fields, partition_count, partition_index, skip_corrupted_data, drop_remainder,
        num_parallel_reads, num_sequential_reads, filters, checksums, partition_by, num_threads: as in
        `lockstep.data.ParquetDataset`.
      num_parallel_parser_calls: another name of `num_threads`; `tf.data.AUTOTUNE` means its default.
    """

    def __init__(
        self,
        filenames: Any,
        batch_size: Any = 1,
        fields: Iterable[str | Field] | None = None,
        partition_count: Any = None,
        partition_index: Any = None,
        skip_corrupted_data: bool = False,
        drop_remainder: bool = False,
        num_parallel_reads: int | None = None,
        num_sequential_reads: int = 1,
        num_parallel_parser_calls: int | None = None,
        *,
        filters: Filters | None = None,
        checksums: Checksums | None = None,
        partition_by: str = "rows",
        num_threads: int | None = None,
    ) -> None:
        reading = Reading(
            None,
            partition_count,
            partition_index,
            num_parallel_reads=num_parallel_reads,
            num_sequential_reads=num_sequential_reads,
            filters=filters,
            skip_corrupted_data=skip_corrupted_data,
            checksums=checksums,
            partition_by=partition_by,
            num_threads=_threads(num_threads, num_parallel_parser_calls),
        )
        self._table = _Table.of(filenames, fields, False, None, reading)
        self._drop_remainder = drop_remainder
        super().__init__(self._table.batches(batch_size, drop_remainder))

    @property
    def all_fields(self) -> list[Field]:
        """All fields, including those that consist of their default only."""
        return self._table.fields

    @property
    def fields(self) -> list[Field]:
        """The fields that are read from the files; a batch has exactly these."""
        return [field for field in self._table.fields if field not in self._table.constants]

    @property
    def partition_count(self) -> Any:
        """The number of shares."""
        return self._table.reading.share()[0]

    @property
    def partition_index(self) -> Any:
        """The number of the share that is read, from 0."""
        return self._table.reading.share()[1]

    @property
    def drop_remainder(self) -> bool:
        """True if a last batch of fewer rows is left out."""
        return self._drop_remainder

    @classmethod
    def read_schema(
        cls, filename: str, fields: Iterable[str | Field] | None = None, lower: bool = False
    ) -> tuple[Field, ...]:
        """Returns the complete fields of a file, in the order of `fields`, or of the file.

        Args:
          filename: a file, a folder or a pattern; the first file is described.
          fields: names and fields; None for all columns that can be read.
          lower: ignores the case of the columns' names.

        Raises:
          tf.errors.OpError: the file does not exist, cannot be read, or lacks one of the columns.
        """
        return tuple(resolve(fields, [filename], ignore_case=lower))


def _threads(num_threads: int | None, num_parallel_parser_calls: int | None) -> int | None:
    if num_threads is not None or num_parallel_parser_calls in (None, tf.data.AUTOTUNE):
        return num_threads
    return num_parallel_parser_calls


class TabularDataset(dataset_ops.DatasetV1Adapter):
    """A table of rows: HybridBackend's `hb.data.Dataset`. Create it with `from_parquet` or `from_orc`.

    Iterating over it gives single rows. `batch` and `shuffle_batch` give batches, and read much faster. Columns of
    lists are sparse tensors, or dense tensors if `to_dense` is given.
    """

    def __init__(self, table: _Table, to_dense: Any, deduplicate: frames.Transformation | None) -> None:
        self._table = table
        self._to_dense = to_dense
        self._deduplicate = deduplicate
        super().__init__(self._parsed(table.batches(_ROWS_AT_ONCE, False)).unbatch())

    @classmethod
    def from_parquet(
        cls,
        filenames: Any,
        fields: Iterable[str | Field] | None = None,
        partition_count: Any = None,
        partition_index: Any = None,
        skip_corrupted_data: bool = False,
        to_dense: Any = False,
        num_parallel_reads: int | None = None,
        num_parallel_parser_calls: int | None = None,
        field_ignore_case: bool = False,
        field_map_fn: Callable[[Sequence[Field]], Sequence[Field]] | None = None,
        key_idx_field_names: Sequence[str] | None = None,
        value_field_names: Sequence[Sequence[str]] | None = None,
        *,
        filters: Filters | None = None,
        checksums: Checksums | None = None,
        partition_by: str = "rows",
        num_threads: int | None = None,
    ) -> TabularDataset:
        """Creates a table of the rows of Parquet files.

        Args:
          filenames: names of files, folders and patterns, a string tensor, or a dataset of strings.
          partition_count: number of shares; None for one for each worker of the job.
          partition_index: the share to read; None for this worker's.
          num_parallel_reads: number of files that are read in turn; None for one after the other.
          filters: the rows to read, `[(column, op, value), ...]`; see `lockstep.data.ParquetDataset`. Row groups that
            statistics exclude are not read; ORC files are read completely and then filtered.
          checksums: the SHA-256 that files must have; see `lockstep.data.ParquetDataset`.
          partition_by: how rows are divided among the shares; see `lockstep.data.ParquetDataset`.
          num_threads: number of threads that decode; None for this worker's part of the cores.
          fields: names and `DataFrame.Field`s; None for all columns that can be represented as tensors. A field whose
            `default_value` is not a single value (a list, a tensor, a sparse tensor) stands for a column that no file
            has.
          skip_corrupted_data: leaves out damaged data and counts it in warnings; see `lockstep.data.ParquetDataset`.
          to_dense: True for columns of lists as dense tensors, padded to the batch's longest list; a shape to pad to;
            or a dict of these by column name. See `DataFrame.parse`.
          num_parallel_parser_calls: another name of `num_threads`; `tf.data.AUTOTUNE` means its default.
          field_ignore_case: ignores the case of the columns' names; batches have the files' names.
          field_map_fn: takes the complete fields and returns the fields to read.
          key_idx_field_names: the index columns of columns that are stored without duplicates; see `deduplicate`. Batch
            sizes then count rows of the file.
          value_field_names: for each index column, the value columns that it belongs to.

        Raises:
          ValueError, TypeError: an argument is invalid by itself.
          tf.errors.OpError: the first file cannot be read, or lacks one of the columns.
        """
        if (key_idx_field_names is None) != (value_field_names is None):
            raise ValueError("key_idx_field_names and value_field_names: wanted both or none")
        reading = Reading(
            None,
            partition_count,
            partition_index,
            num_parallel_reads=num_parallel_reads,
            filters=filters,
            skip_corrupted_data=skip_corrupted_data,
            checksums=checksums,
            partition_by=partition_by,
            num_threads=_threads(num_threads, num_parallel_parser_calls),
        )
        table = _Table.of(filenames, fields, field_ignore_case, field_map_fn, reading)
        deduplicate = None
        if key_idx_field_names is not None:
            deduplicate = frames.deduplicate(key_idx_field_names, value_field_names or ())
        return cls(table, to_dense, deduplicate)

    @classmethod
    def from_orc(cls, filenames: Any, *args: Any, **kwargs: Any) -> TabularDataset:
        """Creates a table of the rows of ORC files; arguments as in `from_parquet`."""
        return cls.from_parquet(filenames, *args, **kwargs)

    @property
    def fields(self) -> list[Field]:
        """All fields, including those that consist of their default only."""
        return self._table.fields

    def batch(self, batch_size: Any, drop_remainder: bool = False, **_: Any) -> tf.data.Dataset:
        """Returns a dataset of batches of `batch_size` rows, in order.

        The last batch may have fewer rows; `drop_remainder` leaves such a batch out.
        """
        return self._parsed(self._table.batches(batch_size, drop_remainder))

    def shuffle_batch(
        self,
        batch_size: Any,
        drop_remainder: bool = False,
        buffer_size: Any = None,
        seed: Any = None,
        reshuffle_each_iteration: bool | None = None,
    ) -> tf.data.Dataset:
        """Returns a dataset of batches of rows in random order.

        Args:
          batch_size: rows of a batch.
          drop_remainder: leaves out a last batch of fewer rows.
          buffer_size: each batch is drawn from the next `buffer_size` + `batch_size` rows that were not drawn before.
            None: `batch_size`.
          seed: determines the draws; see `RebatchDataset`.
          reshuffle_each_iteration: whether each pass draws differently.
        """
        batches = RebatchDataset(
            self._table.batches(batch_size, False),
            None,
            batch_size,
            drop_remainder,
            batch_size if buffer_size is None else buffer_size,
            seed,
            reshuffle_each_iteration,
        )
        return self._parsed(batches)

    def _parsed(self, batches: Any) -> Any:
        if self._deduplicate is not None:
            batches = batches.apply(self._deduplicate)
        if any(isinstance(spec, frames.Value) for spec in batches.element_spec.values()):
            batches = batches.apply(frames.parse(pad=self._to_dense))
        if self._table.constants:
            batches = batches.apply(frames.populate_defaults(self._table.constants)).map(self._in_order)
        return batches

    @tf.autograph.experimental.do_not_convert
    def _in_order(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns the columns of a batch in the order of the fields."""
        return {field.name: batch[field.name] for field in self._table.fields if field.name in batch}


def read_parquet(
    batch_size: Any,
    fields: Iterable[str | Field] | None = None,
    partition_count: Any = None,
    partition_index: Any = None,
    drop_remainder: bool = False,
    num_parallel_reads: int | None = None,
    num_sequential_reads: int = 1,
    *,
    filters: Filters | None = None,
) -> frames.Transformation:
    """Returns a transformation for `apply` from a dataset of file names to batches as `FrameDataset` gives them."""
    return lambda filenames: FrameDataset(
        filenames,
        batch_size,
        fields,
        partition_count,
        partition_index,
        drop_remainder=drop_remainder,
        num_parallel_reads=num_parallel_reads,
        num_sequential_reads=num_sequential_reads,
        filters=filters,
    )
