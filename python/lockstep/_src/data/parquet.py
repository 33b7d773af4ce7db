"""Datasets of Parquet files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from lockstep._src.data.checksums import Checksums, words
from lockstep._src.data.fields import Field, form_of, resolve
from lockstep._src.data.filters import Filters, conjunctions, encode
from lockstep._src.data.sharing import mark_share
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops

_PARTITION_BY = ("rows", "row_groups", "batches")


class _Columns(dataset_ops.DatasetSource):
    """The result of the op as a dataset: each column is a tuple of its values and row splits."""

    def __init__(self, variant_tensor: tf.Tensor, element_spec: Any) -> None:
        self._element_spec = element_spec
        super().__init__(variant_tensor)

    @property
    def element_spec(self) -> Any:
        return self._element_spec


@tf.autograph.experimental.do_not_convert
def _encode(columns: dict[str, tuple[tf.Tensor, ...]]) -> dict[str, tf.Tensor]:
    """Returns the columns in the form in which `tf.data` holds them: a ragged column is one variant tensor."""
    return {
        name: tf.raw_ops.RaggedTensorToVariant(
            rt_nested_splits=tensors[1:], rt_dense_values=tensors[0], batched_input=False
        )
        if len(tensors) > 1
        else tensors[0]
        for name, tensors in columns.items()
    }


def _filenames(filenames: Any) -> tuple[list[str] | None, Any]:
    """Returns the names as a list (None if they are not known yet), and as a tensor or a dataset."""
    if isinstance(filenames, dataset_ops.DatasetV2):
        if filenames.element_spec != tf.TensorSpec([], tf.string):
            raise ValueError(f"filenames: a dataset of {filenames.element_spec}, wanted one of scalar strings")
        return None, filenames
    if tf.is_tensor(filenames):
        if filenames.dtype != tf.string:
            raise TypeError(f"filenames: a tensor of {filenames.dtype.name}, wanted strings")
        return None, tf.reshape(filenames, [-1])
    if isinstance(filenames, (str, bytes, os.PathLike)):
        filenames = [filenames]
    names = [os.fsdecode(name) for name in filenames]
    return names, tf.constant([os.fsencode(name) for name in names], tf.string, [len(names)])


@dataclasses.dataclass(frozen=True)
class Reading:
    """How files are read: the arguments that `ParquetDataset` and similar datasets share; see there."""

    fields: Iterable[str | Field] | None = None
    partition_count: int | tf.Tensor | None = None
    partition_index: int | tf.Tensor | None = None
    drop_remainder: bool = False
    num_parallel_reads: int | None = None
    num_sequential_reads: int = 1
    partition_by: str = "rows"
    num_threads: int | None = None
    name: str | None = None
    piece_rows: int = 0
    filters: Filters | None = None
    skip_corrupted_data: bool = False
    checksums: Checksums | None = None

    def share(self) -> tuple[Any, Any]:
        """Returns `partition_count` and `partition_index`; by default this worker's values."""
        count, index = self.partition_count, self.partition_index
        if (count is None) != (index is None) and count != 1:
            raise ValueError(f"partition_count is {count} and partition_index is {index}, wanted both or none")
        return (context.world_size, context.rank) if count is None else (count, 0 if index is None else index)

    def columns(
        self, filenames: Any, batch_size: int | tf.Tensor, spec: Callable[[Field, int | None], Any] | None = None
    ) -> tuple[Any, list[Field]]:
        """Returns the dataset that the op makes, and the fields of its columns.

        Args:
          filenames: as `ParquetDataset` takes them.
          batch_size: rows of a batch.
          spec: returns the spec of a field in a batch of a given number of rows (None: any number). Its flat components
            must be the field's values and row splits. None for a tuple of these.
        """
        names, filenames = _filenames(filenames)
        complete = resolve(self.fields, names)
        rows = batch_size if self.drop_remainder and not tf.is_tensor(batch_size) else None
        specs = {field.name: (spec or tensor_specs)(field, rows) for field in complete}
        arguments = self._checked(batch_size)
        if isinstance(filenames, dataset_ops.DatasetV2):

            @tf.autograph.experimental.do_not_convert
            def read(all_names: tf.Tensor) -> Any:
                return _Columns(self._op(all_names, complete, specs, **arguments), specs)

            dataset = filenames.batch(tf.int64.max).flat_map(read)
        else:
            dataset = _Columns(self._op(filenames, complete, specs, **arguments), specs)
        return (dataset if tf.get_static_value(self.partition_count) == 1 else mark_share(dataset)), complete

    def _checked(self, batch_size: int | tf.Tensor) -> dict[str, Any]:
        """Returns the arguments of the op that depend on the job, or that must be checked.

        Raises:
          TypeError: an argument is not an integer.
          ValueError: an argument is out of its range.
        """
        if self.partition_by not in _PARTITION_BY:
            raise ValueError(
                f"partition_by is {self.partition_by!r}, wanted one of {', '.join(map(repr, _PARTITION_BY))}"
            )
        count, index = self.share()
        num_parallel_reads = 1 if self.num_parallel_reads in (None, tf.data.AUTOTUNE) else self.num_parallel_reads
        num_threads = self.num_threads
        if num_threads is None:
            num_threads = _threads_of_a_worker()
        for argument, value in (
            ("batch_size", batch_size),
            ("partition_count", count),
            ("num_parallel_reads", num_parallel_reads),
            ("num_sequential_reads", self.num_sequential_reads),
            ("num_threads", num_threads),
        ):
            if not (tf.is_tensor(value) or hasattr(value, "__index__")):
                raise TypeError(f"{argument} is {value!r}, wanted an integer")
            if not tf.is_tensor(value) and value < 1:
                raise ValueError(f"{argument} is {value}, wanted 1 or more")
        return {
            "batch_size": batch_size,
            "partition_count": count,
            "partition_index": index,
            "num_parallel_reads": num_parallel_reads,
            "num_threads": num_threads,
        }

    def _op(self, filenames: tf.Tensor, complete: list[Field], specs: Any, **arguments: Any) -> tf.Tensor:
        flat_specs = tf.nest.flatten(specs)
        # The components of a dict are in the order of its names, regardless of the order of the dict.
        complete = sorted(complete, key=lambda field: field.name)
        return ops.lockstep_parquet_dataset(
            filenames=filenames,
            field_names=[field.name for field in complete],
            field_types=[field.dtype for field in complete],
            field_ragged_ranks=[field.ragged_rank for field in complete],
            field_shapes=[field.shape for field in complete],
            field_has_defaults=[field.default_value is not None for field in complete],
            field_defaults=[field.default_bytes() for field in complete],
            partition_by=self.partition_by,
            filters=encode(conjunctions(self.filters)),
            checksums=words(self.checksums),
            skip_corrupted_data=self.skip_corrupted_data,
            drop_remainder=self.drop_remainder,
            num_sequential_reads=self.num_sequential_reads,
            piece_rows=self.piece_rows,
            output_types=[spec.dtype for spec in flat_specs],
            output_shapes=[spec.shape for spec in flat_specs],
            name=self.name,
            **arguments,
        )


class ParquetDataset(dataset_ops.UnaryDataset):
    """A `tf.data.Dataset` of batches from Parquet files; each batch is a dict of `tf.Tensor`s and `tf.RaggedTensor`s.

    Columns are in the order of `fields`, or of the first file. A plain column gives a tensor of shape [B]; fixed-size
    lists give [B] + their size; other lists give a ragged tensor with int64 row splits. All batches but the last have
    B = `batch_size` rows. A batch may span several row groups and files.

    In a job of several workers, each worker reads its own share of the rows, unless `partition_count` and
    `partition_index` are given. No row is read twice and none is left out. (HybridBackend leaves this to the program.
    A script that gives different files to each worker must therefore pass `partition_count=1`.) Rows come in the order
    of the files, which is the same on every machine. Iterators save and restore their position in `tf.data`'s
    checkpoints.

    In graph mode (`tf.compat.v1`) the result is a `tf.compat.v1.data.Dataset`, with the methods of that class.

    The class follows HybridBackend's `hb.data.ParquetDataset`; docs/input.md lists the differences.

    Args:
      filenames: a name or a list of names. Each is a file, a folder (all files below it, sorted) or a pattern with `*`,
        `?` and `[...]` (matches sorted). A string tensor or a dataset of strings is also accepted; then every field
        must be complete.
      batch_size: rows of a batch; an integer or a scalar int64 tensor.
      fields: names or `DataFrame.Field`s of the columns to read; None for all columns that can be represented as
        tensors (a warning names the others).
      partition_count: number of shares. None: one for each worker of the job.
      partition_index: the share to read, from 0. None: this worker's rank; `partition_count` must then be None, too.
      drop_remainder: leaves out a last batch of fewer rows. The batch dimension is then static.
      num_parallel_reads: reads this many files in turn: the rows of `num_sequential_reads` batches from each. None: one
        file after the other. It changes only the order of rows; for speed see `num_threads`.
      num_sequential_reads: see `num_parallel_reads`.
      filters: the rows to read, written as in pyarrow: `[(column, op, value), ...]` keeps rows for which all terms are
        true; a list of such lists keeps rows for which all terms of one list are true. The op is one of =, ==, !=, <,
        <=, >, >=, in, not in. The result has exactly the rows that `pyarrow.parquet.read_table(filters=...)` keeps. Row
        groups that the files' statistics exclude are never read. The columns need not be among `fields`. Nulls are
        compared as nulls, also if the field has a `default_value`: only 'not in', and 'in' with None among its values,
        keep them. Batches are full. Shares are made of the row groups that are read; their sizes are equal before rows
        are filtered.
      skip_corrupted_data: leaves out damaged data and counts it in warnings, instead of raising an error. It leaves out
        rows with a null in a field without `default_value`, rows with a list whose length differs from the field's
        `shape`, and files that cannot be read at all. In a damaged row group it leaves out all rows from the decoded
        piece (at most 65536 rows) that shows the damage. Batches are full. Missing files, and columns that are missing
        or have another type, remain errors.
      checksums: the SHA-256 that files must have; finds damage that the file formats do not reveal. A dict from file to
        'sha256:' and 64 hexadecimal digits, or the name of a manifest as `sha256sum` writes it, with names relative to
        its folder. Each file must have a checksum; checksums of other files are ignored. Before its first batch with
        rows of a file, a worker reads that file completely, once for each dataset.
      partition_by: how rows are divided among the shares. 'rows': contiguous shares that differ by one row at most.
        'row_groups': whole row groups, so that no row group is decoded twice; shares differ by at most one row group.
        'batches': in turn, so that step s of W workers with batch B reads the rows of step s of one worker with batch
        W * B; every worker decodes everything.
      num_threads: number of threads that decode. None: the value of the environment variable ARROW_NUM_THREADS, or
        else the number of cores divided by the number of workers on this host.
      name: a name for the op.

    Raises:
      ValueError, TypeError: an argument is invalid by itself.
      tf.errors.OpError: a file does not exist or cannot be read, or it lacks a column or has it in another type. The
        error is raised here for the first file, if `fields` is incomplete; otherwise when an iterator is made. While
        iterating: damaged data, or a null in a field without `default_value`. Messages name the file and the column.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        if tf.compat.v1.executing_eagerly_outside_functions():
            return self
        self.__init__(*args, **kwargs)
        return dataset_ops.DatasetV1Adapter(self)

    def __init__(
        self,
        filenames: Any,
        batch_size: int | tf.Tensor = 1,
        fields: Iterable[str | Field] | None = None,
        partition_count: int | tf.Tensor | None = None,
        partition_index: int | tf.Tensor | None = None,
        drop_remainder: bool = False,
        num_parallel_reads: int | None = None,
        num_sequential_reads: int = 1,
        *,
        filters: Filters | None = None,
        skip_corrupted_data: bool = False,
        checksums: Checksums | None = None,
        partition_by: str = "rows",
        num_threads: int | None = None,
        name: str | None = None,
        _piece_rows: int = 0,
    ) -> None:
        reading = Reading(
            fields,
            partition_count,
            partition_index,
            drop_remainder,
            num_parallel_reads,
            num_sequential_reads,
            partition_by,
            num_threads,
            name,
            _piece_rows,
            filters,
            skip_corrupted_data,
            checksums,
        )
        source, complete = reading.columns(filenames, batch_size)
        rows = batch_size if drop_remainder and not tf.is_tensor(batch_size) else None
        self._element_spec = {field.name: _spec(field, rows) for field in complete}
        if any(field.ragged_rank for field in complete):
            source = source.map(_encode)
        super().__init__(source, source._variant_tensor)

    @property
    def element_spec(self) -> dict[str, tf.TypeSpec]:
        """The specs of the columns of a batch, by name."""
        return self._element_spec


def _threads_of_a_worker() -> int:
    """Returns the number in HybridBackend's environment variable, or else this worker's part of the cores."""
    text = os.environ.get("ARROW_NUM_THREADS", "").strip()
    if not text:
        return max(1, len(os.sched_getaffinity(0)) // context.local_world_size)
    if not text.isdecimal():
        raise ValueError(f"environment variable ARROW_NUM_THREADS: got {text!r}, wanted a number of threads")
    # In HybridBackend, 0 means that only the reading thread decodes.
    return max(1, int(text))


def _spec(field: Field, rows: int | None) -> tf.TypeSpec:
    """Returns the spec of a column in a batch of `rows` rows; None means that the number is not known."""
    dtype, ragged_rank, inner = form_of(field)
    shape = [rows, *[None] * ragged_rank, *inner]
    if ragged_rank == 0:
        return tf.TensorSpec(shape, dtype)
    return tf.RaggedTensorSpec(shape, dtype, ragged_rank, tf.int64)


def tensor_specs(field: Field, rows: int | None) -> tuple[tf.TensorSpec, ...]:
    """Returns the specs of the tensors of a column: the values, then the row splits of each ragged level."""
    dtype, ragged_rank, inner = form_of(field)
    if ragged_rank == 0:
        return (tf.TensorSpec([rows, *inner], dtype),)
    outer_splits = tf.TensorSpec([None if rows is None else rows + 1], tf.int64)
    other_splits = [tf.TensorSpec([None], tf.int64)] * (ragged_rank - 1)
    return (tf.TensorSpec([None, *inner], dtype), outer_splits, *other_splits)
