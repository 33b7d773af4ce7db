"""A dynamic table as strings, for `tf.train.Checkpoint` and Keras' files, which name tensors before they know them.

Which slots a table has is known when an optimizer has trained it, and how many tensors there are follows from its
options. So the table comes as the two files of a checkpoint that holds it alone (tf/checkpoint/table_layout.h): rows,
slots, counts, filters and the clock, all that there is. They pass through memory; `tf.compat.v1.train.Saver` streams.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import tensorflow as tf

from lockstep._src import library
from lockstep._src.context import context

_NAME = "table"
_FILES = ("table.index", "table.data-00000-of-00001")


def to_strings(table: Any) -> tf.Tensor:
    """All that a table holds: string [2].

    Raises:
      NotImplementedError: the job has several workers, or the table is one of a graph.
    """
    check_can_be_strings(table)
    one = {"tables": [table.handle], "names": [_NAME]}
    with tempfile.TemporaryDirectory() as folder:
        counts, link = library.ops.lockstep_begin_snapshots(**one)
        library.ops.lockstep_write_tables(os.path.join(folder, _NAME), counts[tf.newaxis], link, **one, rank=0)
        library.ops.lockstep_end_snapshots(link, **one)
        return tf.stack([tf.io.read_file(os.path.join(folder, file)) for file in _FILES])


def from_strings(table: Any, strings: tf.Tensor) -> None:
    """Makes the table what `to_strings` gave.

    Raises:
      NotImplementedError: as `to_strings`.
      tf.errors.OpError: the strings are damaged, or of another table.
    """
    check_can_be_strings(table)
    with tempfile.TemporaryDirectory() as folder:
        for file, content in zip(_FILES, tf.unstack(strings, len(_FILES)), strict=True):
            tf.io.write_file(os.path.join(folder, file), content)
        table.create_anew()
        library.ops.lockstep_restore_tables(os.path.join(folder, _NAME), [table.handle], [_NAME], rank=0, world_size=1)


def check_can_be_strings(table: Any) -> None:
    """Raises NotImplementedError as `to_strings` does."""
    if context.world_size > 1 or not tf.executing_eagerly():
        where = f"a job of {context.world_size} workers" if context.world_size > 1 else "a graph"
        raise NotImplementedError(
            f"table '{table.logical_name}': tf.train.Checkpoint and Keras' files have no dynamic tables of {where}: "
            "tf.compat.v1.train.Saver saves those of graphs, and lockstep.keras.export writes SavedModels"
        )
