"""Datasets of Parquet files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from lockstep._src.data.checksums import Checksums, words
from lockstep._src.data.fields import Field, resolve
from lockstep._src.data.filters import Filters, conjunctions, encode
from lockstep._src.data.sharing import mark_share
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops

_PARTITION_BY = ("rows", "row_groups", "batches")


class _Columns(dataset_ops.DatasetSource):
    """The op as a dataset: of each column a tuple of its values and row splits."""

    def __init__(self, variant_tensor: tf.Tensor, element_spec: Any) -> None:
        self._element_spec = element_spec
        super().__init__(variant_tensor)

    @property
    def element_spec(self) -> Any:
        return self._element_spec


@tf.autograph.experimental.do_not_convert
def _encode(columns: dict[str, tuple[tf.Tensor, ...]]) -> dict[str, tf.Tensor]:
    """Columns as `tf.data` holds them: a ragged one as a single variant tensor."""
    return {
        name: tf.raw_ops.RaggedTensorToVariant(
            rt_nested_splits=tensors[1:], rt_dense_values=tensors[0], batched_input=False
        )
        if len(tensors) > 1
        else tensors[0]
        for name, tensors in columns.items()
    }


def _filenames(filenames: Any) -> tuple[list[str] | None, Any]:
    """The names where they are known now, and as a tensor or a dataset."""
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
    """How files are read: arguments of `ParquetDataset`, which explains them, and of its relatives."""

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
        """`partition_count` and `partition_index`, those of this worker where they are not given."""
        count, index = self.partition_count, self.partition_index
        if (count is None) != (index is None) and count != 1:
            raise ValueError(f"partition_count is {count} and partition_index is {index}, wanted both or none")
        return (context.world_size, context.rank) if count is None else (count, 0 if index is None else index)

    def columns(
        self, filenames: Any, batch_size: int | tf.Tensor, spec: Callable[[Field, int | None], Any] | None = None
    ) -> tuple[Any, list[Field]]:
        """The dataset that the op makes, and the fields of its columns.

        Args:
          filenames: as `ParquetDataset` takes them.
          batch_size: rows of a batch.
          spec: what a field is in a batch of so many rows (None: of any number), whose flat components are its values
            and row splits. None: a tuple of these.
        """
        names, filenames = _filenames(filenames)
        complete = resolve(self.fields, names)
        rows = batch_size if self.drop_remainder and not tf.is_tensor(batch_size) else None
        specs = {field.name: (spec or tensor_specs)(field, rows) for field in complete}
        arguments = self._checked(batch_size)
        if isinstance(filenames, dataset_ops.DatasetV2):

            @tf.autograph.experimental.do_not_convert
            def of_names(every_name: tf.Tensor) -> Any:
                return _Columns(self._op(every_name, complete, specs, **arguments), specs)

            dataset = filenames.batch(tf.int64.max).flat_map(of_names)
        else:
            dataset = _Columns(self._op(filenames, complete, specs, **arguments), specs)
        return (dataset if tf.get_static_value(self.partition_count) == 1 else mark_share(dataset)), complete

    def _checked(self, batch_size: int | tf.Tensor) -> dict[str, Any]:
        """Those of the op's arguments that depend on the job or may be wrong in themselves."""
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
        # The components of a dict are in the order of its names, whatever the order of the dict.
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
    """A `tf.data.Dataset` of batches of Parquet files, as dicts of name -> `tf.Tensor` or `tf.RaggedTensor`.

    Columns are in the order of `fields`, or of the first file. Plain columns give tensors of shape [B], fixed-size
    lists [B] + their size, lists ragged tensors with int64 row splits. All batches have B = `batch_size` rows but for
    the last; they go over the borders of row groups and files.

    Inside a job of several workers each one reads its own share of the rows, unless `partition_count` and
    `partition_index` say otherwise: no row is read twice and none left out. (HybridBackend leaves this to its caller: a
    script that gives each worker other files must say `partition_count=1`.) Rows come in the order of the files, the
    same on every machine. Iterators save and restore their position with `tf.data`'s checkpoints.

    In graph mode (`tf.compat.v1`) it gives a `tf.compat.v1.data.Dataset`, with that class's methods.

    Follows HybridBackend's `hb.data.ParquetDataset`; docs/input.md says where it differs.

    Args:
      filenames: a name or a list of names of files, folders (all files below them, sorted) or patterns with `*`, `?`
        and `[...]` (sorted); also a string tensor or a dataset of strings, then every field must be complete.
      batch_size: rows of a batch; an integer or a scalar int64 tensor.
      fields: names or `DataFrame.Field`s of the columns to read; None for all that have a form as a tensor (a warning
        names the others).
      partition_count: number of shares. None: one for each worker of the job.
      partition_index: which share is read, from 0. None: this worker's rank; needs `partition_count` to be None, too.
      drop_remainder: leaves out a last batch of fewer rows. The batch dimension is static then.
      num_parallel_reads: reads this many files in turn: `num_sequential_reads` batches' rows from each. None: one file
        after the other. It changes the order of rows, and only that: see `num_threads`.
      num_sequential_reads: see `num_parallel_reads`.
      filters: which rows to read, as pyarrow spells it: `[(column, op, value), ...]`, all of which must hold, or a list
        of such lists, all of one of which must hold; op is one of =, ==, !=, <, <=, >, >=, in, not in. Exactly the rows
        are read that `pyarrow.parquet.read_table(filters=...)` keeps; row groups that the files' statistics exclude are
        never read. The columns need not be among `fields`. Nulls are compared as nulls, whatever the field's
        `default_value`: only 'not in', and 'in' with None among its values, keep them. Batches are full; shares are
        made of the row groups that are read and are equal before rows are filtered.
      skip_corrupted_data: leaves out what cannot be read, with warnings that count it, instead of raising an error:
        rows with a null where the field has no `default_value`, or with a list of another length than the field's
        `shape`; in a row group with damage, the rows from the decoded piece (at most 65536 rows) on in which it shows;
        files that are not readable at all. Batches are full. Missing files, and columns that are missing or of another
        type, remain errors.
      checksums: the SHA-256 that files must have, against damage that their formats don't show: a dict of file to
        'sha256:' and 64 hexadecimal digits, or the name of a manifest as `sha256sum` writes it, whose names are
        relative to its folder. Each file must have one; those of other files do no harm. Before its first batch with
        rows of a file, a worker reads that file whole, once for each dataset.
      partition_by: how rows are shared out. 'rows': contiguous shares that differ by one row at most. 'row_groups':
        whole row groups, so that none is decoded twice; shares differ by at most one row group's rows. 'batches': in
        turn, so that step s of W workers with batch B reads the rows of step s of one worker with batch W * B; every
        worker decodes everything.
      num_threads: threads that decode. None: as ARROW_NUM_THREADS of the environment says, else as many as cores,
        divided by the workers on this host.
      name: a name for the op.

    Raises:
      ValueError, TypeError: an argument that is wrong in itself.
      tf.errors.OpError: here, for the first file, where `fields` leaves something open, else when an iterator is made:
        a file that does not exist or cannot be read, a column that a file has not or has in another type. While
        iterating: damaged data, and nulls in a field without `default_value`. Messages name file and column.

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
        """Specs of the columns of a batch, by name."""
        return self._element_spec


def _threads_of_a_worker() -> int:
    """As many as HybridBackend's variable says, else this worker's part of the cores."""
    text = os.environ.get("ARROW_NUM_THREADS", "").strip()
    if not text:
        return max(1, len(os.sched_getaffinity(0)) // context.local_world_size)
    if not text.isdecimal():
        raise ValueError(f"environment variable ARROW_NUM_THREADS: got {text!r}, wanted a number of threads")
    # 0 was none beside the one that reads.
    return max(1, int(text))


def _spec(field: Field, rows: int | None) -> tf.TypeSpec:
    """Spec of a column of a batch of `rows` rows, None where that is not known."""
    shape = [rows, *[None] * field.ragged_rank, *field.shape.as_list()]
    if field.ragged_rank == 0:
        return tf.TensorSpec(shape, field.dtype)
    return tf.RaggedTensorSpec(shape, field.dtype, field.ragged_rank, tf.int64)


def tensor_specs(field: Field, rows: int | None) -> tuple[tf.TensorSpec, ...]:
    """Specs of the tensors that make the column: values, then the row splits of each ragged level."""
    inner = field.shape.as_list()
    if field.ragged_rank == 0:
        return (tf.TensorSpec([rows, *inner], field.dtype),)
    outer_splits = tf.TensorSpec([None if rows is None else rows + 1], tf.int64)
    other_splits = [tf.TensorSpec([None], tf.int64)] * (field.ragged_rank - 1)
    return (tf.TensorSpec([None, *inner], field.dtype), outer_splits, *other_splits)
