"""Changes of tables that only tests make."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lockstep._src.engine import library


def remove(table: Any, keys: Any) -> tf.Tensor:
    """Removes keys from this worker's part of a dynamic table.

    Programs have no such method: another key could get a removed row between a lookup and its update.

    Returns:
      The number of keys that were there, an int64 scalar.
    """
    keys = tf.convert_to_tensor(keys, None if tf.is_tensor(keys) else table.key_dtype)
    return library.ops.lockstep_dynamic_table_remove(table.handle, keys)
