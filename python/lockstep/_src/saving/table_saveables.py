"""Dynamic tables in the checkpoints of a job (tf/checkpoint/table_layout.h lists the tensors of a table).

A save begins with a snapshot of all tables at the same moment: rows, slots, counts and filters. Every worker writes its
rows to a file of its own, piece by piece, and worker 0 merges these files. When the checkpoint is complete, the tables
store its number, and the next incremental checkpoint builds on it.

A restore clears the tables, and each worker takes the keys that it owns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.training.saving import saveable_object

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


def saved(saveables: Sequence[TableSaveable], *, changes: bool, track: bool) -> dict[str, Any]:
    """Returns the tables as arguments of the operation that saves them.

    Args:
      saveables: the tables; the same on all workers.
      changes: saves only the changes since the last checkpoint.
      track: makes the tables record their changes from now on.
    """
    return {
        "tables": [saveable.table.handle for saveable in saveables],
        "table_names": [saveable.name for saveable in saveables],
        "changes": changes,
        "track": track,
        "part_rows": PART_ROWS,
    }


def misfit(
    shapes: Mapping[str, list[int]], dtypes: Mapping[str, tf.DType], name: str, dim: int, key_dtype: tf.DType
) -> str:
    """Returns how a checkpoint's table differs from one of this dimension and type of keys; "" if it fits.

    Args:
      shapes: the shapes of the checkpoint's tensors.
      dtypes: their types.
      name: the name of the table.
      dim: the dimension.
      key_dtype: the type of the keys.
    """
    keys, values = f"{name}-keys", f"{name}-values"
    if keys not in shapes or values not in shapes:
        return "is incremental there; wanted a full checkpoint" if f"{name}-changed-keys" in shapes else "is missing"
    wanted = tf.string if key_dtype == tf.string else tf.int64
    (count,) = shapes[keys]
    has = (dtypes[keys], list(shapes[values]))
    if has == (wanted, [count, dim]):
        return ""
    return f"has keys {has[0].name} and rows {has[1]}, the model {wanted.name} and {[count, dim]}"


def restore(
    saveables: Sequence[Any], prefix: tf.Tensor, *, changes: bool, track: bool, part: str = "all"
) -> tf.Operation:
    """Restores tables from a full checkpoint, or applies the changes of an incremental one.

    Args:
      saveables: the tables; objects with the attributes `table` and `name`.
      prefix: the checkpoint's prefix.
      changes: true if the checkpoint is incremental; the tables must hold the checkpoint on which it builds.
      track: makes the tables record their changes from now on.
      part: 'all'; or 'rows' or 'rows and slots', as the beginning of another training.
    """
    with tf.control_dependencies([] if changes else [saveable.table.creation for saveable in saveables]):
        return ops.lockstep_restore_tables(
            prefix,
            tables=[saveable.table.handle for saveable in saveables],
            names=[saveable.name for saveable in saveables],
            changes=changes,
            rank=context.rank,
            world_size=context.world_size,
            track=track,
            part=part,
        )
