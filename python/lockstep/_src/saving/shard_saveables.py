"""Sharded tables, and optimizers' slots for them, in the checkpoints of a job (tf/checkpoint/saved_table.h).

In a checkpoint a table is one tensor, by id. Worker r writes the r-th of W contiguous ranges of it, in slices of some
megabytes, to a file of its own. In a restore, each worker of the present job, with any number of workers, reads one
range. The rows pass between the ranges and their owners piece by piece. So neither needs memory for a second copy of
a worker's rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.training.saving import saveable_object

from lockstep._src.engine.context import context
from lockstep._src.engine.host_memory import has_host_memory
from lockstep._src.engine.library import ops
from lockstep._src.tables import sharded

# The bytes of one piece; 0 chooses some megabytes.
PIECE_BYTES = 0


class ShardSaveable(saveable_object.SaveableObject):
    """A sharded variable under its name in the checkpoint. It has no tensors for TensorFlow's own save operation.

    Args:
      variable: the local shard, [local rows, ...].
      shard: which rows it holds.
      name: the logical tensor's name in the checkpoint.
    """

    def __init__(self, variable: tf.Variable, shard: sharded.Shard, name: str) -> None:
        self.variable, self.shard = variable, shard
        super().__init__(variable, [], name)

    def restore(self, restored_tensors: list[tf.Tensor], restored_shapes: list[Any] | None) -> tf.Operation:
        """Does nothing, because `restore` of this module restores all tables together."""
        del restored_tensors, restored_shapes
        return tf.no_op()


def saved_shard_of(variable: Any) -> sharded.Shard | None:
    """Returns the rows that a variable holds, if it is a sharded table or a slot of one, and is saved in rows.

    TensorFlow reads no slices of float16. In a job of one worker only names and shapes identify slots, which are not
    trainable.
    """
    if not resource_variable_ops.is_resource_variable(variable) or variable.dtype.base_dtype == tf.float16:
        return None
    shard = sharded.shard_of(variable)
    if shard is not None or context.world_size > 1 or not hasattr(variable, "graph"):
        return shard
    if variable.trainable or not (variable.dtype.is_floating or variable.dtype.is_integer):
        return None
    return sharded.shard_of_slot(variable, variable.op.name)


def take_of_one_worker(names_to_saveables: Any) -> tuple[dict[str, ShardSaveable], Any]:
    """Splits a saver's variables into tables with their slots, by name, and all others, in a job of one worker.

    In larger jobs it returns all as others: TensorFlow's saver keeps them apart, as slices.
    """
    if context.world_size > 1:
        return {}, names_to_saveables
    if not isinstance(names_to_saveables, dict):
        flat = tf.nest.flatten(list(names_to_saveables))
        rows, rest = _split((variable.op.name, variable) for variable in flat if isinstance(variable, tf.Variable))
        return rows, [*rest.values(), *(other for other in flat if not isinstance(other, tf.Variable))]
    return _split(names_to_saveables.items())


def _split(named: Iterable[tuple[str, Any]]) -> tuple[dict[str, ShardSaveable], dict[str, Any]]:
    rows, rest = {}, {}
    for name, variable in named:
        shard = saved_shard_of(variable)
        # A slot may be in the memory of a GPU: only names and shapes make it one.
        if shard is None or not has_host_memory(variable):
            rest[name] = variable
        else:
            rows[name] = ShardSaveable(variable, shard, name)
    return rows, rest


def restore(saveables: Sequence[ShardSaveable], prefix: tf.Tensor, *, changes: bool = False) -> tf.Operation:
    """Restores this worker's rows. All workers take part.

    Args:
      saveables: the tables; the same on all workers.
      prefix: the checkpoint's prefix.
      changes: true if the checkpoint is incremental; the tables must hold the checkpoint on which it builds.
    """
    return ops.lockstep_restore_shards(prefix, **arguments(saveables), changes=changes, name="restore_shards")


def arguments(saveables: Sequence[ShardSaveable]) -> dict[str, Any]:
    """Returns the tables as arguments of the operations that save and restore them."""
    return {
        "piece_bytes": PIECE_BYTES,
        "shards": [saveable.variable.handle for saveable in saveables],
        "shard_names": [saveable.name for saveable in saveables],
        "shard_dtypes": [saveable.variable.dtype.base_dtype for saveable in saveables],
        "shard_shapes": [[saveable.shard.rows, *saveable.variable.shape.as_list()[1:]] for saveable in saveables],
        "blocks": [saveable.shard.block for saveable in saveables],
        "first_ranks": [saveable.shard.first for saveable in saveables],
    }
