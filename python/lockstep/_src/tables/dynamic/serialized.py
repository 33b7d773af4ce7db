"""A dynamic table as strings, for `tf.train.Checkpoint` and Keras' files.

These must know the names of all tensors before they have the tensors. But a table's slots are known only after an
optimizer has trained it, and its number of tensors follows from its options. Therefore the table is given as the two
files of a checkpoint that contains this table only (tf/checkpoint/table_layout.h): its rows, slots, counts, filters and
clock. They pass through memory; `tf.compat.v1.train.Saver` streams them instead.

In a job of several workers, worker 0 gathers the parts of all and makes the same two files of them. Any number of
workers can restore from these files; each takes the keys that it owns.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine import file_errors, library
from lockstep._src.engine.context import context
from lockstep._src.tables import updates

_NAME = "table"
_FILES = ("table.index", "table.data-00000-of-00001")
# The attribute of a gathered table that has its strings.
_WHOLE = "_lockstep_whole_table"


def to_strings(table: Any) -> tf.Tensor:
    """Returns everything that a table holds: string [2].

    Raises:
      NotImplementedError: the job has several workers and the table is not `gathered`, or the table is in a graph.
    """
    _check_is_eager(table)
    whole = getattr(table, _WHOLE, None)
    if whole is not None:
        return whole
    if context.world_size > 1:
        raise NotImplementedError(
            f"table '{table.logical_name}': tf.train.Checkpoint, and Keras' files outside of a scope, cannot save "
            f"dynamic tables of a job of {context.world_size} workers; call Keras' save_weights on all workers in a "
            "scope, or use tf.compat.v1.train.Saver in a graph"
        )
    with tempfile.TemporaryDirectory() as folder:
        counts, checkpoint_id = library.ops.lockstep_begin_snapshots(**_arguments(table))
        _write(table, os.path.join(folder, _NAME), counts[tf.newaxis], checkpoint_id)
        return _read(folder)


class Copy:
    """A copy of this worker's part of a table, on the disk: a table may take most of the memory.

    The files are in a folder of the system's temporary one (TMPDIR), and are deleted with this object. They have the
    rows, the slots and everything else that a checkpoint has.

    Args:
      table: the table; training must not change it meanwhile.

    Raises:
      NotImplementedError: the table is in a graph.
      tf.errors.OpError: the files cannot be written; the message names the table and the folder.
    """

    def __init__(self, table: Any) -> None:
        _check_is_eager(table)
        self._table = table
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep_copy_")
        counts, checkpoint_id = library.ops.lockstep_begin_snapshots(**_arguments(table))
        try:
            path = self._path()
            library.ops.lockstep_write_tables(path, counts[tf.newaxis], checkpoint_id, **_arguments(table), rank=0)
        except tf.errors.OpError as error:
            raise file_errors.named(error, f"{self._what()} cannot be written: {file_errors.cause_of(error)}") from None
        library.ops.lockstep_end_snapshots(checkpoint_id, **_arguments(table))

    def _what(self) -> str:
        return f"table '{self._table.logical_name}': its copy in {self._folder.name}"

    def _path(self) -> str:
        return os.path.join(self._folder.name, _NAME)

    def restore(self) -> None:
        """Gives the table what the copy has."""
        self._table.recreate()
        if os.path.exists(f"{self._path()}.index"):  # a worker without rows has no file
            library.ops.lockstep_restore_tables(
                self._path(), **_arguments(self._table), rank=context.rank, world_size=context.world_size
            )
        updates.note_restored(self._table)


def from_strings(table: Any, strings: tf.Tensor) -> None:
    """Restores a table from the result of `to_strings`; in a job of several workers this worker's part of it.

    Raises:
      NotImplementedError: the table is in a graph.
      tf.errors.OpError: the strings are damaged, or of another table.
    """
    _check_is_eager(table)
    with tempfile.TemporaryDirectory() as folder:
        for file, content in zip(_FILES, tf.unstack(strings, len(_FILES)), strict=True):
            tf.io.write_file(os.path.join(folder, file), content)
        table.recreate()
        library.ops.lockstep_restore_tables(
            os.path.join(folder, _NAME), **_arguments(table), rank=context.rank, world_size=context.world_size
        )
    updates.note_restored(table)


@contextlib.contextmanager
def gathered(tables: Sequence[Any]) -> Iterator[None]:
    """Makes `to_strings` return the parts of all workers on worker 0. All workers enter it with the same tables."""
    try:
        for table in tables:
            _check_is_eager(table)
            setattr(table, _WHOLE, _gather(table))
        yield
    finally:
        for table in tables:
            setattr(table, _WHOLE, None)


def _gather(table: Any) -> tf.Tensor | None:
    """Returns the strings of all workers' parts on worker 0, None on the others."""
    rank, workers = context.rank, context.world_size
    with tempfile.TemporaryDirectory() as folder:
        parts = [os.path.join(folder, f"part-{r:05d}") for r in range(workers)]
        counts, checkpoint_id = library.ops.lockstep_begin_snapshots(**_arguments(table))
        counts = ordered.allgather(counts[tf.newaxis], name="table_counts")
        checkpoint_id = ordered.allgather(checkpoint_id[tf.newaxis], name="table_checkpoint_id")[0]
        has_rows = _write(table, parts[rank], counts, checkpoint_id)
        mine = np.frombuffer(_pack(has_rows, Path(folder)), np.uint8)
        to_worker_0 = tf.constant([len(mine)] + [0] * (workers - 1), tf.int64)
        received, sizes = ordered.alltoall(tf.constant(mine), to_worker_0, name="table_parts")
        if rank != 0:
            return None
        merged = []
        for sender, (part, packed) in enumerate(zip(parts, tf.split(received, sizes), strict=True)):
            try:
                has_rows, files = _unpack(packed.numpy().tobytes(), os.path.basename(part))
            except ValueError as error:
                raise ValueError(f"table '{table.logical_name}': the part of rank {sender}: {error}") from error
            merged += [part] if has_rows else []
            for name, content in files.items():
                Path(folder, name).write_bytes(content)
        if table.key_dtype == tf.string:
            merged.append(os.path.join(folder, "strings"))
            library.ops.lockstep_join_strings(parts, merged[-1])
        return _as_one(folder, merged)


def _pack(has_rows: bool, folder: Path) -> bytes:
    """Returns a worker's part as bytes: the length of the JSON (8 bytes, little endian), the JSON, and the files."""
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    about = {"has_rows": has_rows, "files": {name: len(content) for name, content in files.items()}}
    header = json.dumps(about).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *files.values()])


def _unpack(packed: bytes, prefix: str) -> tuple[bool, dict[str, bytes]]:
    """Returns whether a part has rows, and its files, whose names begin with `prefix`; ValueError: it is malformed."""
    end = 8 + int.from_bytes(packed[:8], "little")
    try:
        about = json.loads(packed[8:end])
        has_rows, sizes = about["has_rows"], dict(about["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"got {len(packed)} bytes that do not begin with a part's description: {error}") from error
    if not isinstance(has_rows, bool) or not all(type(size) is int and size >= 0 for size in sizes.values()):
        raise ValueError(f"got the description {about}, wanted whether there are rows, and sizes of files")
    files = {}
    for name, size in sizes.items():
        if name != os.path.basename(name) or not name.startswith(prefix):
            raise ValueError(f"got a file {name!r}, wanted names that begin with {prefix!r}")
        files[name] = packed[end : end + size]
        end += size
    if end != len(packed):
        raise ValueError(f"got {len(packed)} bytes, wanted the {end} that its description adds up to")
    return has_rows, files


def _as_one(folder: str, prefixes: Sequence[str]) -> tf.Tensor:
    """Merges partial checkpoints and returns the two files of the merged one."""
    merged = os.path.join(folder, "merged")
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=merged, delete_old_dirs=False)
    reader = tf.train.load_checkpoint(merged)
    names = sorted(reader.get_variable_to_shape_map())
    tf.raw_ops.SaveV2(
        prefix=os.path.join(folder, _NAME),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[reader.get_tensor(name) for name in names],
    )
    return _read(folder)


def _arguments(table: Any) -> dict[str, Any]:
    return {"tables": [table.handle], "names": [_NAME]}


def _write(table: Any, prefix: str, counts: tf.Tensor, checkpoint_id: tf.Tensor) -> bool:
    """Writes this worker's part and returns whether it has rows."""
    has_rows = library.ops.lockstep_write_tables(prefix, counts, checkpoint_id, **_arguments(table), rank=context.rank)
    library.ops.lockstep_end_snapshots(checkpoint_id, **_arguments(table))
    return bool(has_rows)


def _read(folder: str) -> tf.Tensor:
    return tf.stack([tf.io.read_file(os.path.join(folder, file)) for file in _FILES])


def _check_is_eager(table: Any) -> None:
    if not tf.executing_eagerly():
        raise NotImplementedError(
            f"table '{table.logical_name}': tf.train.Checkpoint and Keras' files cannot save dynamic tables of a "
            "graph; tf.compat.v1.train.Saver saves them"
        )
