"""The variables that are shards of tables."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lockstep._src.tables.placement.shard import Shard

# The tables of a graph. Eager execution has one default graph for everything. But it also has no optimizer of
# TensorFlow 1, whose slots would have to find their table.
_TABLES = "lockstep/sharded_tables"
# Tables that `note` was called with, by id, as long as they live: a variable cannot be a key.
_noted: weakref.WeakValueDictionary[int, tf.Variable] = weakref.WeakValueDictionary()


def register(table: tf.Variable) -> None:
    """Registers `table`, which has a `shard`, for `tables` and `shard_of`, as long as its graph lives."""
    if not tf.executing_eagerly():
        tf.compat.v1.get_default_graph().add_to_collection(_TABLES, table)


def tables(graph: tf.Graph | None = None) -> Iterator[tf.Variable]:
    """Yields the sharded tables of a graph (the default one), in the order in which they were made."""
    yield from (graph or tf.compat.v1.get_default_graph()).get_collection(_TABLES)


def shard_of(variable: Any) -> Shard | None:
    """Returns the shard that a variable holds: of a sharded table, or of an optimizer's slot for one; else None.

    A slot is identified by the slice information that TensorFlow's slot creator copies from the table. Its full name
    consists of the table's name and the slot's.
    """
    shard = getattr(variable, "shard", None)
    if isinstance(shard, Shard):
        return shard
    info = getattr(variable, "_save_slice_info", None)
    if info is None or not hasattr(variable, "graph") or tf.executing_eagerly():
        return None
    return shard_of_slot(variable, info.full_name)


def shard_of_slot(slot: tf.Variable, name: str) -> Shard | None:
    """Returns the shard of the table, in the slot's graph, whose slot has this name; None if there is none."""
    # With tables 'user' and 'user/age', the slot 'user/age/Adagrad' belongs to the second one.
    owners = [
        table
        for table in tables(slot.graph)
        if name.startswith(table.logical_name + "/") and slot.shape[:1] == table.shape[:1]
    ]
    return max(owners, key=lambda table: len(table.logical_name)).shard if owners else None


def note(table: tf.Variable) -> None:
    """Makes `is_named_as_slot` know a table that is made outside of a scope."""
    _noted[id(table)] = table


def is_named_as_slot(variable: Any) -> bool:
    """Returns whether a variable has the name and the shape of a slot that an optimizer makes for a noted table.

    Outside of a scope nothing else tells it. TensorFlow 1 and Keras 2 name slots by paths that contain the table's
    name, such as "user/Adagrad" and "Adam/m/user". Keras 3 names them such as "user_0_momentum".
    """
    name = variable.name.split(":")[0]
    return any(
        variable.shape == table.shape
        and variable is not table
        and (
            f"/{table.logical_name}/" in f"/{name}/"
            or name.startswith(f"{table.name.replace('/', '_').replace(':', '_')}_")
        )
        for table in list(_noted.values())
    )


def is_table(variable: Any) -> bool:
    """Returns whether a variable's rows are distributed over the workers: a sharded or a dynamic table.

    A rank has rows of its own, and gets their gradient from all ranks in the backward pass.
    """
    value = getattr(variable, "_value", variable)
    # One of SOK's dynamic variables is an ordinary variable for some time, of rows that only this rank has.
    return is_sharded(value) or getattr(value, "sums_gradients", False)


def is_sharded(variable: Any) -> bool:
    """Returns whether a variable is a sharded table, an optimizer's slot for one, or a dynamic table."""
    return shard_of(variable) is not None or getattr(variable, "is_dynamic", False)
