"""Which optimizer owns which slots of a dynamic table.

Slots are columns of the table, named "<optimizer's name>/<slot>", and go when their optimizer has gone: when the next
one comes to the table, which takes their memory. In a graph an optimizer lives as long as the graph does, which goes on
applying it when the program has let it go; so in graphs of TensorFlow 1 slots stay.
"""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph, ops

from lockstep._src.engine import library

# The attribute of a table: name -> owner.
_OWNERS = "_lockstep_owners_of_slots"
# That of a graph: the optimizers that it applies.
_ALIVE = "_lockstep_optimizers"


@dataclasses.dataclass
class _Owner:
    optimizer: weakref.ref
    slots: set[str]
    # How often rows had been changed when the table was restored; None where it has not been since the owner came.
    restored_at: int | None = None


def slot_names(optimizer: Any, table: Any, slots: Sequence[str]) -> list[str]:
    """The names under which a dynamic table keeps an optimizer's slots: "<the optimizer's own, made unique>/<slot>".

    Optimizers that update one table have slots of their own, as TensorFlow's have: the second 'Adagrad' that is applied
    to it is 'Adagrad_1', while the first lives. So a program that goes on from a checkpoint has to apply them in the
    same order, or name them.
    """
    owners = vars(table).setdefault(_OWNERS, {})
    _live_with_graph(optimizer)
    unique = next((name for name, owner in owners.items() if owner.optimizer() is optimizer), None)
    if unique is None:
        _drop_slots_of_gone(table, owners)
        unique = name = optimizer.get_name() if hasattr(optimizer, "get_name") else optimizer.name
        others = 0
        while unique in owners:
            others += 1
            unique = f"{name}_{others}"
        owners[unique] = _Owner(weakref.ref(optimizer), set())
    names = [f"{unique}/{slot}" for slot in slots]
    owners[unique].slots.update(names)
    return names


def note_restored(table: Any) -> None:
    """A table has just been restored, under eager execution: its slots are the checkpoint's.

    They are for an optimizer that comes and has their name, unless the owner that is there goes on to change them.
    """
    for owner in vars(table).get(_OWNERS, {}).values():
        owner.restored_at = _changes(table)


def _changes(table: Any) -> int:
    return int(table.clock()[1])


def _live_with_graph(optimizer: Any) -> None:
    if tf.executing_eagerly():
        return
    with ops.init_scope():
        functions_alone = tf.executing_eagerly()
    graph = ops.get_default_graph()
    while graph is not None:
        is_function = isinstance(graph, func_graph.FuncGraph)
        if is_function or not functions_alone:
            if not hasattr(graph, _ALIVE):
                setattr(graph, _ALIVE, {})
            getattr(graph, _ALIVE)[id(optimizer)] = optimizer
        graph = graph.outer_graph if is_function else None


def _drop_slots_of_gone(table: Any, owners: dict[str, _Owner]) -> None:
    with ops.init_scope():
        if not owners or not tf.executing_eagerly():
            return
        # An optimizer and the functions that apply it hold one another.
        gc.collect()
        gone = [owners.pop(name) for name in [name for name, owner in owners.items() if owner.optimizer() is None]]
        changes = _changes(table)
        slots = sorted(slot for owner in gone if owner.restored_at != changes for slot in owner.slots)
        if slots:
            library.ops.lockstep_dynamic_table_drop_slots(table.handle, slots=slots)
