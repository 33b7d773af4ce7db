"""The slots of a dynamic table, and the optimizers that own them.

Slots are columns of the table, named "<optimizer's name>/<slot>". After an optimizer is deleted, its slots stay until
another optimizer is first applied to the table; then they are removed, and their memory is used again. A graph applies
its optimizers also after the program has deleted them. Therefore slots in graphs of TensorFlow 1 are never removed.
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

# An attribute of a table: name -> owner.
_OWNERS = "_lockstep_owners_of_slots"
# An attribute of a graph: the optimizers that it applies.
_ALIVE = "_lockstep_optimizers"


@dataclasses.dataclass
class _Owner:
    optimizer: weakref.ref
    slots: set[str]
    # The number of row changes when the table was restored; None if it was not restored since the owner came.
    restored_at: int | None = None


def slot_names(optimizer: Any, table: Any, slots: Sequence[str]) -> list[str]:
    """Returns the names under which a dynamic table keeps an optimizer's slots: "<unique name>/<slot>".

    Optimizers that update the same table have separate slots, as in TensorFlow. The second 'Adagrad' that is applied to
    it becomes 'Adagrad_1' while the first one lives. Therefore a program that continues from a checkpoint must apply
    its optimizers in the same order, or give them names.
    """
    owners = vars(table).setdefault(_OWNERS, {})
    _live_with_graph(optimizer)
    unique = next((name for name, owner in owners.items() if owner.optimizer() is optimizer), None)
    if unique is None:
        _drop_slots_of_gone(table, owners)
        unique = name = _name_of(optimizer)
        others = 0
        while unique in owners:
            others += 1
            unique = f"{name}_{others}"
        owners[unique] = _Owner(weakref.ref(optimizer), set())
    names = [f"{unique}/{slot}" for slot in slots]
    owners[unique].slots.update(names)
    return names


def _name_of(optimizer: Any) -> str:
    if hasattr(optimizer, "get_name"):
        return optimizer.get_name()
    # Keras' legacy optimizers have no public name.
    return optimizer.name if hasattr(optimizer, "name") else optimizer._name


def note_restored(table: Any) -> None:
    """Records that a table has just been restored, under eager execution: its slots are the checkpoint's.

    They belong to the next optimizer with their name, unless their current owner changes them first.
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
        # An optimizer and the functions that apply it refer to each other.
        gc.collect()
        gone = [owners.pop(name) for name in [name for name, owner in owners.items() if owner.optimizer() is None]]
        changes = _changes(table)
        slots = sorted(slot for owner in gone if owner.restored_at != changes for slot in owner.slots)
        if slots:
            library.ops.lockstep_dynamic_table_drop_slots(table.handle, slots=slots)
