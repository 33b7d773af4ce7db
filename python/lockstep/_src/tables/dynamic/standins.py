"""Optimizers without a fused rule on dynamic tables: a variable with the touched rows stands in for the table.

Optimizers are written for variables. So for each table an optimizer gets a variable, the stand-in, and creates slots
for it as usual. In each step, the rows that have a gradient are read from the table into the stand-in, and their slots
into its slots. The optimizer runs, and the results are written back. Rows without a gradient do not change. The cost is
a copy of the touched rows in both directions, for weights and slots.

A stand-in has one row more than the step touches, which belongs to no key. So it is never empty.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.collectives.slices import summed_by_row
from lockstep._src.engine import library
from lockstep._src.tables import updates
from lockstep._src.tables.dynamic.variable import is_asked_for_one_row, shapes_of_one_row
from lockstep._src.tables.sharded import initial_values as initial


@dataclasses.dataclass(frozen=True)
class Slot:
    """One of an optimizer's slots for a stand-in.

    Attributes:
      name: the optimizer's name of the slot.
      variable: a variable of TensorFlow, [?, D].
      initial: its initial value: a number, or a tensor whose elements all have this value.
    """

    name: str
    variable: tf.Variable
    initial: Any


class _StandIn(resource_variable_ops.ResourceVariable):
    """A variable with a fixed shape [1, D] while its slots are created, which some optimizers require.

    Attributes:
      slots: the slots that were recorded for it; only an optimizer of Keras 3 records them.
    """

    slots: list[Slot]

    @property
    def shape(self) -> tf.TensorShape:
        return tf.TensorShape([1, *super().shape[1:].as_list()]) if is_asked_for_one_row() else super().shape

    def get_shape(self) -> tf.TensorShape:
        return self.shape


@contextlib.contextmanager
def slots_of_any_length(dim: int) -> Iterator[None]:
    """Makes variables that are created inside with a value of shape [1, dim] have the shape [?, dim]."""

    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        if initial.shape_of(kwargs.get("initial_value"), kwargs.get("shape")).as_list() == [1, dim]:
            kwargs.update(shape=tf.TensorShape([None, dim]), validate_shape=False)
        return next_creator(**kwargs)

    with shapes_of_one_row(), tf.variable_creator_scope(create):
        yield


def of(optimizer: Any, table: Any) -> _StandIn:
    """Returns the stand-in of a table for an optimizer; the first call creates it.

    It is a variable [?, D] of float32. The table holds it, so it exists as long as the table and the optimizer.
    """
    stand_ins = vars(table).setdefault("_stand_ins", weakref.WeakKeyDictionary())
    if optimizer not in stand_ins:
        start: np.ndarray = np.zeros([1, table.dim], np.float32)
        with tf.init_scope():
            stand_ins[optimizer] = _StandIn(
                initial_value=lambda: tf.constant(start),
                shape=tf.TensorShape([None, table.dim]),
                dtype=tf.float32,
                trainable=False,
                name=f"{table.logical_name}/StandIn",
            )
            stand_ins[optimizer].slots = []
    return stand_ins[optimizer]


def initial_of(slot: tf.Variable) -> Any:
    """Returns the initial value of a stand-in's slot: a number under eager execution, in a graph a tensor."""
    if not tf.executing_eagerly():
        return slot.initial_value
    if not hasattr(slot, "_lockstep_initial"):
        slot._lockstep_initial = float(tf.reduce_max(slot))  # before the first step
    return slot._lockstep_initial


def checked(table: Any, gradient: Any) -> tf.IndexedSlices:
    """Returns a table's gradient by numbers of rows; raises NotImplementedError if it is dense."""
    if not isinstance(gradient, tf.IndexedSlices):
        raise NotImplementedError(
            f"table '{table.logical_name}' is dynamic: its gradient is tf.IndexedSlices, got {gradient}"
        )
    return table.numbered(gradient)


def touched(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the numbers of the rows that have a gradient, [U + 1] with -1 at the end, and the sums, [U, D]."""
    summed = summed_by_row(gradient)
    return tf.concat([summed.indices, tf.constant([-1], tf.int64)], 0), summed.values


def update_rows(
    optimizer: Any,
    table: Any,
    gradient: tf.IndexedSlices,
    slots: Sequence[Slot],
    update: Callable[[tf.Tensor], tf.Operation | None],
) -> tf.Operation | None:
    """Updates the rows of a table that have a gradient: reads them into the stand-in, updates it, and writes them back.

    Args:
      optimizer: the optimizer.
      table: the table.
      gradient: the table's gradient.
      slots: the optimizer's slots for the stand-in.
      update: makes the optimizer's update of the stand-in from the sums of the gradient, [U, D]. Row i of the stand-in
        has the sum i; its last row has none.

    Returns:
      In a graph, the operation that writes the rows.
    """
    names = updates.slot_names(optimizer, table, [slot.name for slot in slots])
    columns = [("", of(optimizer, table), tf.constant(0.0))]
    for name, slot in zip(names, slots, strict=True):
        columns.append((name, slot.variable, tf.reduce_max(tf.cast(slot.initial, tf.float32))))
    numbers, summed = touched(gradient)
    taken = []
    for name, variable, begins_with in columns:
        rows = library.ops.lockstep_dynamic_table_read_rows(table.handle, numbers, begins_with, slot=name)
        rows = tf.cast(rows, variable.dtype)
        taken.append(tf.raw_ops.AssignVariableOp(resource=variable.handle, value=rows))
    with tf.control_dependencies(taken):
        updated = update(summed)
    written = []
    with tf.control_dependencies([] if updated is None else [updated]):
        for name, variable, begins_with in columns:
            rows = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            rows = tf.cast(rows, tf.float32)
            write_rows = library.ops.lockstep_dynamic_table_write_rows
            written.append(write_rows(table.handle, numbers, rows, begins_with, slot=name))
        return tf.group(*written)
