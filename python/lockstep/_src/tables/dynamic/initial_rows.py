"""Initial values of dynamic tables: from an initializer to the values that the engine draws for a key.

The engine can draw constants, uniform, normal and truncated normal values. With these, every key has a row of its own,
which depends only on seed, table and key, but not on the order of keys or the number of workers. The values differ from
TensorFlow's generator with the same seed. Any other initializer follows DeepRec's rule: it draws a matrix of
`default_value_dim` rows once, and a key begins with row `key mod default_value_dim`.

The seed of an initializer without one is derived from the graph's seed and the table's name
(tables/sharded/initial_values.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lockstep._src.tables.sharded import initial_values


class Initial(NamedTuple):
    """The initial values of a table's rows.

    Attributes:
      attributes: attributes of the operation that creates the table.
      rows: float32 [K, D]; [0, D] if the engine draws the values.
    """

    attributes: dict[str, Any]
    rows: tf.Tensor


_NUMBER = (int, float, np.number)

_KINDS = {
    "zeros": lambda c: ("constant", 0.0, 0.0),
    "ones": lambda c: ("constant", 1.0, 0.0),
    "constant": lambda c: ("constant", c["value"], 0.0),
    "randomuniform": lambda c: ("uniform", c["minval"], c["maxval"]),
    "randomnormal": lambda c: ("normal", c["mean"], c["stddev"]),
    "truncatednormal": lambda c: ("truncated_normal", c["mean"], c["stddev"]),
}


def initial_of(initializer: Any, dim: int, name: str, default_value_dim: int) -> Initial:
    """Returns the initial values that an initializer gives to a table.

    Args:
      initializer: an initializer of TensorFlow or Keras, its class, a function of a shape and a type, a number, or an
        array or tensor [K, dim]: key k begins with row `k mod K`. None: a truncated normal distribution.
      dim: the dimension D.
      name: the name of the table.
      default_value_dim: see `InitializerOption`.

    Raises:
      ValueError: the initializer gives a value of another shape.
    """
    if initializer is None:
        initializer = tf.compat.v1.truncated_normal_initializer()
    if isinstance(initializer, type):
        initializer = initializer()
    none = tf.zeros([0, dim])
    if isinstance(initializer, _NUMBER):
        return Initial({"initial": "constant", "initial_a": float(initializer)}, none)
    known = _known(initializer)
    if known is not None:
        kind, a, b = known
        seed = initializer.get_config().get("seed")
        seed = initial_values.name_seed(name) if seed is None else _number(seed)
        return Initial({"initial": kind, "initial_a": float(a), "initial_b": float(b), "seed": seed}, none)
    if not callable(initializer):
        rows = initializer if tf.is_tensor(initializer) else tf.convert_to_tensor(initializer, tf.float32)
    else:
        rows = _draw(initial_values.seeded_copy(initializer, name), [default_value_dim, dim])
    if rows.shape.rank != 2 or rows.shape.as_list()[1] != dim:
        raise ValueError(f"table '{name}': initial rows of shape {rows.shape}, wanted [number of rows, {dim}]")
    return Initial({"initial": "rows"}, tf.cast(rows, tf.float32))


def default_value(start: Initial, attributes: Mapping[str, Any]) -> float:
    """Returns each element of the default row, which keys without a row read, in the table and in exports of it.

    It is `default_value_no_permission` of the options. If all keys are admitted and begin with a constant, it is that
    constant. Rows drawn for each key cannot be used here, as exports consist of TensorFlow's operations, which cannot
    compute them.

    Args:
      start: the initial values of the table.
      attributes: the result of `table_options.attributes`.
    """
    if start.attributes["initial"] == "constant" and attributes.get("min_frequency", 0) <= 1:
        return start.attributes["initial_a"]
    return attributes["default_value"]


def _known(initializer: Any) -> tuple[str, float, float] | None:
    if not hasattr(initializer, "get_config"):
        return None
    name = re.sub(r"_|initializer|V2", "", type(initializer).__name__).lower()
    # A subclass in the user's program may draw other values.
    package = type(initializer).__module__.partition(".")[0]
    if name not in _KINDS or package not in ("tensorflow", "keras", "tf_keras"):
        return None
    kind, a, b = _KINDS[name](initializer.get_config())
    return (kind, a, b) if all(isinstance(value, _NUMBER) for value in (a, b)) else None


def _number(seed: Any) -> int:
    return int(seed) & (2**63 - 1) if isinstance(seed, (int, np.integer)) else initial_values.name_seed(repr(seed))


def _draw(initializer: Any, shape: list[int]) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(initializer(shape, dtype=tf.float32))
    except (TypeError, ValueError):
        # Initializers of Keras 3 take the name of a type.
        return tf.convert_to_tensor(initializer(shape, dtype="float32"))
