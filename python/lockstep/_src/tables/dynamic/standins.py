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
from collections.abc import Callable, Iterator
from typing import Any

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
      name: the optimizer's name of the slot; in results of `in_table`, the name of the table's column.
      variable: a variable of TensorFlow, [?, D].
      initial: its initial value: a number, or a tensor whose elements all have this value.
    """

    name: str
    variable: tf.Variable
    initial: Any


class _StandIn(resource_variable_ops.ResourceVariable):
    """A variable with a fixed shape [1, D] while its slots are created, which some optimizers require."""

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


def make(table: Any) -> tf.Variable:
    """Creates a variable [?, D] of float32 that can hold rows of the table."""
    with tf.init_scope():
        return _StandIn(
            initial_value=lambda: tf.zeros([1, table.dim]),
            shape=tf.TensorShape([None, table.dim]),
            dtype=tf.float32,
            trainable=False,
            name=f"{table.logical_name}/StandIn",
        )


def touched(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the numbers of the rows that have a gradient, [U + 1] with -1 at the end, and the sums, [U, D]."""
    summed = summed_by_row(gradient)
    return tf.concat([summed.indices, tf.constant([-1], tf.int64)], 0), summed.values


def in_table(optimizer: Any, table: Any, slots: list[Slot]) -> list[Slot]:
    """Returns the slots with the names of the table's columns."""
    names = updates.slot_names(optimizer, table, [slot.name for slot in slots])
    return [dataclasses.replace(slot, name=name) for slot, name in zip(slots, names, strict=True)]


def take(table: Any, numbers: tf.Tensor, stand_in: tf.Variable, slots: list[Slot]) -> list[tf.Operation]:
    """Reads rows and slots from the table into the optimizer's variables."""
    parts = [("", stand_in, 0.0), *((s.name, s.variable, s.initial) for s in slots)]
    taken = []
    for name, variable, begins_with in parts:
        read = library.ops.lockstep_dynamic_table_read_rows(table.handle, numbers, _number(begins_with), slot=name)
        taken.append(_assign(variable, tf.cast(read, variable.dtype)))
    return taken


def put(table: Any, numbers: tf.Tensor, stand_in: tf.Variable, slots: list[Slot]) -> list[tf.Operation]:
    """Writes the values of the optimizer's variables to the table."""
    parts = [("", stand_in, 0.0), *((s.name, s.variable, s.initial) for s in slots)]
    return [
        library.ops.lockstep_dynamic_table_write_rows(
            table.handle, numbers, tf.cast(_value(variable), tf.float32), _number(begins_with), slot=name
        )
        for name, variable, begins_with in parts
    ]


def _assign(variable: tf.Variable, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _value(variable: tf.Variable) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _number(begins_with: Any) -> tf.Tensor:
    return tf.reduce_max(tf.cast(begins_with, tf.float32))
