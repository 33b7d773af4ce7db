"""Tables, and changes of tables, that only tests make."""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

from lockstep._src.engine import library

_numbers = itertools.count()


def make(dim: int = 2, *, rows: Any = None, **attributes: Any) -> tf.Tensor:
    """Creates an empty dynamic table of this process, eagerly.

    Args:
      dim: the dimension of its rows.
      rows: the rows with which keys begin; None: see `attributes`.
      **attributes: those of LockstepDynamicTableCreate. By default, each row begins with 0.5, and the name is 'user'.

    Returns:
      The handle, to be passed to the operations of dynamic tables.
    """
    table = library.ops.lockstep_dynamic_table(dim=dim, shared_name=f"table of a test {next(_numbers)}")
    initial = {"initial": "constant", "initial_a": 0.5} if rows is None else {"initial": "rows"}
    library.ops.lockstep_dynamic_table_create(
        table,
        tf.zeros([0, dim]) if rows is None else rows,
        **{"table_name": "user", "dim": dim, **initial, **attributes},
    )
    return table


def remove(table: Any, keys: Any) -> tf.Tensor:
    """Removes keys from this worker's part of a dynamic table.

    Programs have no such method: another key could get a removed row between a lookup and its update.

    Returns:
      The number of keys that were there, an int64 scalar.
    """
    keys = tf.convert_to_tensor(keys, None if tf.is_tensor(keys) else table.key_dtype)
    return library.ops.lockstep_dynamic_table_remove(table.handle, keys)
