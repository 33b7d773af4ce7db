"""Dynamic tables in the checkpoints of a job (tf/checkpoint/table_layout.h lists the tensors of a table).

A save begins with a snapshot of all tables at the same moment: rows, slots, counts and filters. Every worker writes its
rows to a file of its own, piece by piece, and worker 0 merges these files. When the checkpoint is complete, the tables
store its number, and the next incremental checkpoint builds on it.

A restore clears the tables, and each worker takes the keys that it owns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.training.saving import saveable_object

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep._src.tables.dynamic.variable import DynamicVariable, is_dynamic

# The number of rows in one piece; 0 chooses a number of rows that takes a few megabytes.
PART_ROWS = 0


class TableSaveable(saveable_object.SaveableObject):
    """A dynamic table under its name in the checkpoint. It has no tensors for TensorFlow's own save operation."""

    def __init__(self, table: DynamicVariable, name: str) -> None:
        self.table = table
        super().__init__(table.handle.op, [], name)

    def restore(self, restored_tensors: list[tf.Tensor], restored_shapes: list[Any] | None) -> tf.Operation:
        """Does nothing, because `restore` of this module restores all tables together."""
        del restored_tensors, restored_shapes
        return tf.no_op()


class Writing(NamedTuple):
    """The first half of a save.

    Attributes:
      written: the operation that writes this worker's file.
      link: the number of the checkpoint.
      has_rows: bool scalar, true if the file has any tensor. A file without tensors cannot be merged.
    """

    written: tf.Operation
    link: tf.Tensor
    has_rows: tf.Tensor


def take_tables(names_to_saveables: Any) -> tuple[dict[str, TableSaveable], Any]:
    """Splits a saver's variables into dynamic tables, by their names in the checkpoint, and all others, unchanged."""
    if isinstance(names_to_saveables, dict):
        tables, rest = {}, {}
        for name, value in names_to_saveables.items():
            one = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
            if is_dynamic(one):
                tables[name] = TableSaveable(one, name)
            else:
                rest[name] = value
        return tables, rest
    flat = tf.nest.flatten(list(names_to_saveables))
    tables = {v.logical_name: TableSaveable(v, v.logical_name) for v in flat if is_dynamic(v)}
    return tables, [v for v in flat if not is_dynamic(v)]


def write(saveables: Sequence[TableSaveable], prefix: tf.Tensor, *, changes: bool, track: bool) -> Writing:
    """Writes this worker's rows to a file of its own.

    Args:
      saveables: the tables; the same on all workers.
      prefix: the file's prefix.
      changes: writes only the changes since the last checkpoint.
      track: makes the tables record their changes from now on.
    """
    tables = _arguments(saveables, changes)
    counts, link = ops.lockstep_begin_snapshots(**tables, track=track)
    if context.world_size > 1:
        mine = tf.concat([tf.reshape(counts, [1, -1]), [[link]]], 1)
        all_counts = ordered.allgather(mine, name="save_tables")
        counts = tf.reshape(all_counts[:, :-1], [context.world_size, *counts.shape])
        link = all_counts[0, -1]
    else:
        counts = counts[tf.newaxis]
    has_rows = ops.lockstep_write_tables(prefix, counts, link, **tables, rank=context.rank, part_rows=PART_ROWS)
    return Writing(has_rows.op, link, has_rows)


def join_strings(saveables: Sequence[TableSaveable], prefixes: Sequence[tf.Tensor], joined: tf.Tensor) -> list[Any]:
    """Joins the string keys that all workers have written in one file; worker 0 calls it.

    Args:
      saveables: the tables.
      prefixes: the prefix that each worker passed to `write`.
      joined: the prefix of the joined file.

    Returns:
      A list with the joined file's prefix, [1], which is available after the file is written. An empty list if no
      table has string keys, or if there is one worker, whose own file has the keys.
    """
    if len(prefixes) == 1 or not any(saveable.table.key_dtype == tf.string for saveable in saveables):
        return []
    with tf.control_dependencies([ops.lockstep_join_strings(tf.stack(prefixes), joined)]):
        return [tf.reshape(joined, [1])]


def end(saveables: Sequence[TableSaveable], link: tf.Tensor, *, changes: bool) -> tf.Operation:
    """Ends the snapshots of a complete checkpoint; the next incremental checkpoint builds on it."""
    return ops.lockstep_end_snapshots(link, **_arguments(saveables, changes))


def restore(saveables: Sequence[TableSaveable], prefix: tf.Tensor, *, changes: bool, track: bool) -> tf.Operation:
    """Restores tables from a full checkpoint, or applies the changes of an incremental one.

    Args:
      saveables: the tables.
      prefix: the checkpoint's prefix.
      changes: true if the checkpoint is incremental; the tables must hold the checkpoint on which it builds.
      track: makes the tables record their changes from now on.
    """
    with tf.control_dependencies([] if changes else [saveable.table.initializer for saveable in saveables]):
        return ops.lockstep_restore_tables(
            prefix, **_arguments(saveables, changes), rank=context.rank, world_size=context.world_size, track=track
        )


def _arguments(saveables: Sequence[TableSaveable], changes: bool) -> dict[str, Any]:
    handles = [saveable.table.handle for saveable in saveables]
    return {"tables": handles, "names": [saveable.name for saveable in saveables], "changes": changes}
