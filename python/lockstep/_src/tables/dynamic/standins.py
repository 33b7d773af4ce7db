"""Optimizers that the engine has no rule for, on dynamic tables: the touched rows stand in for the table.

An optimizer is written for variables. So it gets one, the stand-in, with slots of its own making: in each step the rows
that have a gradient and their slots are read out of the table into them, the optimizer runs, and what it makes of them
is put back. Rows without a gradient rest. That costs a copy of the touched rows, there and back, for weights and slots.

A stand-in has one row more than are touched, of a key that is none: so it never is empty.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.engine import library
from lockstep._src.tables import updates
from lockstep._src.tables.dynamic.variable import is_asked_for_one_row, shapes_of_one_row
from lockstep._src.tables.sharded import initial_values as initial


@dataclasses.dataclass(frozen=True)
class Slot:
    """One of an optimizer's slots for a stand-in.

    Attributes:
      name: the optimizer's for it, or, where it is to be taken from the table, of the column (`in_table`).
      variable: a variable of TensorFlow, [?, D].
      initial: what it begins with: a number, or a tensor all elements of which are that number.
    """

    name: str
    variable: tf.Variable
    initial: Any


class _StandIn(resource_variable_ops.ResourceVariable):
    """Of a shape that is known while slots are made for it, as some optimizers want it."""

    @property
    def shape(self) -> tf.TensorShape:
        return tf.TensorShape([1, *super().shape[1:].as_list()]) if is_asked_for_one_row() else super().shape

    def get_shape(self) -> tf.TensorShape:
        return self.shape


@contextlib.contextmanager
def growing_slots(dim: int) -> Iterator[None]:
    """Inside, variables that are made with a value of shape [1, dim] are of shape [?, dim]."""

    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        if initial.shape_of(kwargs.get("initial_value"), kwargs.get("shape")).as_list() == [1, dim]:
            kwargs.update(shape=tf.TensorShape([None, dim]), validate_shape=False)
        return next_creator(**kwargs)

    with shapes_of_one_row(), tf.variable_creator_scope(create):
        yield


def make(table: Any) -> tf.Variable:
    """A variable [?, D] of float32 that can hold rows of the table."""
    with tf.init_scope():
        return _StandIn(
            initial_value=lambda: tf.zeros([1, table.dim]),
            shape=tf.TensorShape([None, table.dim]),
            dtype=tf.float32,
            trainable=False,
            name=f"{table.logical_name}/StandIn",
        )


def touched(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """The numbers of the rows that have a gradient, [U + 1], the last of which is -1; and their sums, [U, D]."""
    numbers, place = tf.unique(gradient.indices)
    summed = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(numbers))
    return tf.concat([numbers, tf.constant([-1], tf.int64)], 0), summed


def in_table(optimizer: Any, table: Any, slots: list[Slot]) -> list[Slot]:
    """The slots with the names of the table's columns."""
    names = updates.slot_names(optimizer, table, [slot.name for slot in slots])
    return [dataclasses.replace(slot, name=name) for slot, name in zip(slots, names, strict=True)]


def take(table: Any, numbers: tf.Tensor, stand_in: tf.Variable, slots: list[Slot]) -> list[tf.Operation]:
    """Reads rows and slots out of the table into the optimizer's variables."""
    parts = [("", stand_in, 0.0), *((s.name, s.variable, s.initial) for s in slots)]
    taken = []
    for name, variable, begins_with in parts:
        read = library.ops.lockstep_dynamic_table_read_rows(table.handle, numbers, _number(begins_with), slot=name)
        taken.append(_assign(variable, tf.cast(read, variable.dtype)))
    return taken


def put(table: Any, numbers: tf.Tensor, stand_in: tf.Variable, slots: list[Slot]) -> list[tf.Operation]:
    """Puts what the optimizer's variables hold into the table."""
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
