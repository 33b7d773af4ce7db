"""`sok.Saver` of SOK 1.x: tables in files without headers (`saver_files.py`).

Rank 0 writes and all ranks read. An error of one rank is raised on all, so no rank waits for another one for ever. Work
with files and the exchanges between ranks are Python functions. In a graph they are operations that call these
functions, and exchange values in graphs of their own (`together.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.compat.sok import checks, files, job, rows, saver_files, together
from lockstep._src.compat.sok.embedding_tables import EmbeddingVariable, HashedTable, IndexedTable, too_many_keys
from lockstep._src.engine import whole_files

_DONE = b"OK"


class Saver:
    """Writes tables of layers to files, and reads them; see `sparse_operation_kit.Saver`."""

    __module__ = "sparse_operation_kit"

    def __call__(self) -> None:
        """Does nothing, as in SOK."""

    def dump_to_file(self, embedding_variable: Any, filepath: Any) -> tf.Tensor:
        """Writes keys and rows of a table; see `sparse_operation_kit.Saver.dump_to_file`."""
        table = _table_of(embedding_variable)
        folder, work = _path(filepath), _Dump(table)
        keys, values = rows.export(table)
        return _call(work, [folder, keys, values], [tf.string])[0]

    def restore_from_file(self, embedding_variable: Any, filepath: Any) -> tf.Tensor:
        """Reads rows of a table; see `sparse_operation_kit.Saver.restore_from_file`."""
        table = _table_of(embedding_variable)
        keys, values = _call(_Read(table), [_path(filepath)], [tf.int64, tf.float32])
        return _set_rows(table, tf.reshape(keys, [-1]), tf.reshape(values, [-1, table.dim]), "restore_from_file")

    def load_embedding_values(self, embedding_variable: Any, tensors: Any) -> tf.Tensor:
        """Sets rows from a whole table; see `sparse_operation_kit.Saver.load_embedding_values`."""
        table = _table_of(embedding_variable)
        whole = _whole(table, tensors)
        count = tf.shape(whole, tf.int64)[0]
        most = table.capacity * job.num_ranks()
        message = (
            f"load_embedding_values: table '{table.m_var_name}': got more rows than max_vocabulary_size_per_gpu * ranks"
            f": wanted at most {most}, got"
        )
        with checks.at_most(count, most, message):
            keys = tf.range(job.rank(), count, job.num_ranks(), dtype=tf.int64)
        return _set_rows(table, keys, whole[job.rank() :: job.num_ranks()], "load_embedding_values")


def _table_of(variable: Any) -> EmbeddingVariable:
    """Returns the table that a variable is or holds; raises TypeError for another variable."""
    table = getattr(variable, "_value", variable)
    if not isinstance(table, EmbeddingVariable):
        raise TypeError(f"sok.Saver: got {variable!r}, wanted the embedding_variable of a layer")
    return table


def _path(path: Any) -> tf.Tensor:
    return tf.convert_to_tensor(path if tf.is_tensor(path) else os.fspath(path), tf.string)


def _call(
    work: Callable[..., tuple[Any, ...]], inputs: Sequence[tf.Tensor], types: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """Calls a function of arrays, or in a graph returns the outputs of an operation that does."""
    if tf.executing_eagerly():
        found = work(*(tensor.numpy() for tensor in inputs))
        return [tf.convert_to_tensor(one, dtype) for one, dtype in zip(found, types, strict=True)]
    return list(tf.numpy_function(work, inputs, list(types), stateful=True))


class _Dump:
    """The part of a dump that works with arrays."""

    def __init__(self, table: EmbeddingVariable) -> None:
        self._name, self._dim = table.m_var_name, table.dim
        self._type = np.dtype(table.keys_are.as_numpy_dtype).newbyteorder("<")

    def __call__(self, folder: bytes, keys: np.ndarray, values: np.ndarray) -> tuple[bytes]:
        """Writes the files.

        Args:
          folder: the folder.
          keys: [n] keys of this rank.
          values: [n, D].
        """
        path = os.fsdecode(folder)
        own = np.empty(len(keys), [("key", self._type), ("row", "<f4", (self._dim,))])
        own["key"], own["row"] = keys, values
        attempt = together.Attempt(f"sok.Saver.dump_to_file: table '{self._name}' into {path}")
        most = max(together.gather_counts(len(own)))
        step = max(1, files.CHUNK_BYTES // (own.itemsize * job.num_ranks()))
        draft = whole_files.draft_name(saver_files.key_path("", self._name).replace("/", "_"))
        with files.StagedFiles(path, draft) as staged, together.GatherToChief() as exchange:
            attempt.on_all(self._create, staged, path)
            for start in range(0, most, step):
                part = exchange.gather(own[start : start + step])
                attempt.do(self._append, staged, path, part)
            attempt.on_all(staged.sync)
            attempt.on_all(staged.publish)  # only rank 0 has files
        return (_DONE,)

    def _create(self, staged: files.StagedFiles, folder: str) -> None:
        if job.rank() != 0:
            return
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"Cannot open {self._paths(folder)[0]} for writing: folder {folder} does not exist")
        for path in self._paths(folder):
            staged.create(path, saver_files.NoHeader())

    def _append(self, staged: files.StagedFiles, folder: str, part: np.ndarray) -> None:
        if job.rank() == 0:
            for path, field in zip(self._paths(folder), ("key", "row"), strict=True):
                staged.append(path, part[field])

    def _paths(self, folder: str) -> tuple[str, str]:
        return saver_files.key_path(folder, self._name), saver_files.value_path(folder, self._name)


class _Read:
    """The part of a restore that works with arrays."""

    def __init__(self, table: EmbeddingVariable) -> None:
        self._name, self._dim, self._capacity = table.m_var_name, table.dim, table.capacity
        self._type = np.dtype(table.keys_are.as_numpy_dtype)
        self._is_indexed = not isinstance(table, HashedTable)

    def __call__(self, folder: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Returns the keys of this rank in the files of a folder, [n] int64, and their rows, [n, D] float32."""
        path = os.fsdecode(folder)
        attempt = together.Attempt(f"sok.Saver.restore_from_file: table '{self._name}' from {path}")
        return attempt.on_all(self._read, path)

    def _read(self, folder: str) -> tuple[np.ndarray, np.ndarray]:
        found = saver_files.RawFiles(folder, self._name, self._dim)
        keys: list[np.ndarray] = [np.zeros(0, np.int64)]
        values: list[np.ndarray] = [np.zeros([0, self._dim], np.float32)]
        for some, their_rows in found.chunks():
            self._check(some, found.keys)
            own = some % some.dtype.type(job.num_ranks()) == job.rank()
            keys.append(some[own].astype(np.int64))
            values.append(their_rows[own])
        own_keys = np.concatenate(keys)
        distinct, times = np.unique(own_keys, return_counts=True)
        if len(distinct) < len(own_keys):
            raise files.DumpFileError(found.keys, f"key {distinct[times > 1][0]} more than once", "each key once")
        if len(own_keys) > self._capacity:
            raise files.DumpFileError(
                found.keys,
                f"{len(own_keys)} keys for rank {job.rank()} of {job.num_ranks()}",
                f"at most {self._capacity}, max_vocabulary_size_per_gpu of table '{self._name}'",
            )
        return own_keys, np.concatenate(values)

    def _check(self, keys: np.ndarray, path: str) -> None:
        """Raises DumpFileError if a key is none of the table."""
        low, high = np.iinfo(self._type).min, np.iinfo(self._type).max
        if self._is_indexed:
            low, high = 0, self._capacity * job.num_ranks() - 1
        outside = (keys < low) | (keys > high)
        if outside.any():
            raise files.DumpFileError(
                path, f"key {keys[outside][0]}", f"keys from {low} to {high} for table '{self._name}'"
            )


def _whole(table: EmbeddingVariable, tensors: Any) -> tf.Tensor:
    """Returns a whole table, [n, D] float32, from one tensor or several.

    Raises:
      ValueError: a tensor has another shape, or there is none.
    """
    listed = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    listed = [tf.cast(tf.convert_to_tensor(one), tf.float32) for one in listed]
    if not listed or any(one.shape.rank is not None and one.shape.num_elements() == 0 for one in listed):
        raise ValueError(f"load_embedding_values: Empty embedding values for table '{table.m_var_name}'")
    for one in listed:
        if not one.shape.is_compatible_with([None, table.dim]):
            raise ValueError(
                f"load_embedding_values: The shape of tensor must be [vocabulary_size, embedding_vec_size], but got "
                f"{one.shape}, wanted [vocabulary_size, {table.dim}] for table '{table.m_var_name}'"
            )
    return listed[0] if len(listed) == 1 else tf.concat(listed, 0)


def _set_rows(table: EmbeddingVariable, keys: tf.Tensor, values: tf.Tensor, what: str) -> tf.Tensor:
    """Sets rows of this rank, and returns the status; in a graph, of an operation that does.

    Args:
      table: the table; slots of optimizers begin again for these keys.
      keys: [n] int64, distinct keys of this rank.
      values: [n, D].
      what: the method, for errors.
    """
    if isinstance(table, IndexedTable):
        done = table.scatter_update(tf.IndexedSlices(values, table.key_map(keys)))
    else:
        assert isinstance(table, HashedTable)
        check = _CapacityCheck(table, what)
        new = tf.math.count_nonzero(table.find(keys) < 0)
        (checked,) = _call(check, [table.total_count() + new], [tf.int64])
        with tf.control_dependencies([checked]):
            done = table.insert(keys, values)
    with tf.control_dependencies([] if tf.executing_eagerly() else [done]):
        return tf.constant(_DONE)


class _CapacityCheck:
    """Raises an error on all ranks if one of them would have too many keys."""

    def __init__(self, table: HashedTable, what: str) -> None:
        self._name, self._capacity, self._what = table.m_var_name, table.capacity, what

    def __call__(self, count: np.ndarray) -> tuple[np.ndarray]:
        """Checks the number of keys that this rank would have, and returns it."""
        together.Attempt(f"sok.Saver.{self._what}").on_all(self._check, int(count))
        return (count,)

    def _check(self, count: int) -> None:
        if count > self._capacity:
            raise ValueError(f"{too_many_keys(self._name, self._capacity)} {count}")
