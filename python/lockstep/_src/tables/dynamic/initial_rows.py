"""Initial values of dynamic tables: from an initializer to what the engine draws for a key.

The engine knows constants, uniform, normal and truncated normal distributions: there every key has a row of its own,
a function of seed, table and key alone, whatever the order and the number of workers. The numbers are not those that
TensorFlow's generator makes of the same seed. For any other initializer DeepRec's rule holds: it draws a matrix of
`default_value_dim` rows once, and a key begins with row `key mod default_value_dim`.

An initializer without a seed has one made of the graph's seed and the table's name (tables/sharded/initial_values.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lockstep._src.tables.sharded import initial_values


class Initial(NamedTuple):
    """What a table's rows begin with.

    Attributes:
      attributes: of the operation that makes the table.
      rows: float32 [K, D], or [0, D] where the engine draws.
    """

    attributes: dict[str, Any]
    rows: tf.Tensor


_KINDS = {
    "zeros": lambda c: ("constant", 0.0, 0.0),
    "ones": lambda c: ("constant", 1.0, 0.0),
    "constant": lambda c: ("constant", c["value"], 0.0),
    "randomuniform": lambda c: ("uniform", c["minval"], c["maxval"]),
    "randomnormal": lambda c: ("normal", c["mean"], c["stddev"]),
    "truncatednormal": lambda c: ("truncated_normal", c["mean"], c["stddev"]),
}


def initial_of(initializer: Any, dim: int, name: str, default_value_dim: int) -> Initial:
    """What an initializer says of a table.

    Args:
      initializer: one of TensorFlow's or Keras', its class, a function of a shape, a number, or an array or tensor
        [K, dim], whose rows keys begin with in turn; None for a truncated normal distribution.
      dim: the dimension.
      name: of the table.
      default_value_dim: see `InitializerOption`.

    Raises:
      ValueError: a value of another shape.
    """
    if initializer is None:
        initializer = tf.compat.v1.truncated_normal_initializer()
    if isinstance(initializer, type):
        initializer = initializer()
    none = tf.zeros([0, dim])
    if isinstance(initializer, (int, float)):
        return Initial({"initial": "constant", "initial_a": float(initializer)}, none)
    known = _known(initializer)
    if known is not None:
        kind, a, b = known
        seed = initializer.get_config().get("seed")
        seed = initial_values.name_seed(name) if seed is None else _number(seed)
        return Initial({"initial": kind, "initial_a": float(a), "initial_b": float(b), "seed": seed}, none)
    if not callable(initializer):
        rows = tf.convert_to_tensor(initializer, tf.float32)
    else:
        rows = _draw(initial_values.seeded_copy(initializer, name), [default_value_dim, dim])
    if rows.shape.rank != 2 or rows.shape.as_list()[1] != dim:
        raise ValueError(f"table '{name}': initial rows of shape {rows.shape}, wanted [number of rows, {dim}]")
    return Initial({"initial": "rows"}, tf.cast(rows, tf.float32))


def default_value(start: Initial, attributes: Mapping[str, Any]) -> float:
    """Returns each element of the default row: keys without a row read it, in the table and in exports of it.

    It is `default_value_no_permission` of the options; where all keys are admitted and begin with a constant, it is
    that constant. Rows that are drawn for each key cannot be computed by TensorFlow's operations, which serve exports.

    Args:
      start: of the table.
      attributes: what `options.attributes` makes of its options.
    """
    if start.attributes["initial"] == "constant" and attributes.get("min_frequency", 0) <= 1:
        return start.attributes["initial_a"]
    return attributes["default_value"]


def _known(initializer: Any) -> tuple[str, float, float] | None:
    if not hasattr(initializer, "get_config"):
        return None
    name = re.sub(r"_|initializer|V2", "", type(initializer).__name__).lower()
    # A subclass of one's own may draw otherwise.
    package = type(initializer).__module__.partition(".")[0]
    if name not in _KINDS or package not in ("tensorflow", "keras", "tf_keras"):
        return None
    kind, a, b = _KINDS[name](initializer.get_config())
    is_number = all(isinstance(value, (int, float, np.number)) for value in (a, b))
    return (kind, a, b) if is_number else None


def _number(seed: Any) -> int:
    return int(seed) & (2**63 - 1) if isinstance(seed, (int, np.integer)) else initial_values.name_seed(repr(seed))


def _draw(initializer: Any, shape: list[int]) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(initializer(shape, dtype=tf.float32))
    except (TypeError, ValueError):
        # Keras 3 has names for types.
        return tf.convert_to_tensor(initializer(shape, dtype="float32"))
