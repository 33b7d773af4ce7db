"""Initial values of a sharded table; they depend on seed, table and row only, not on the number of workers.

Every worker calls the user's initializer for the whole table and keeps its own rows. So an initializer with a seed
gives the same rows as in plain TensorFlow. An initializer without a seed gets one that is derived from the table's name
and the graph's seed (`tf.random.set_seed`, `tf.compat.v1.set_random_seed`). TensorFlow's own choice of a seed would
depend on the operations that were built before.

During the initialization, a worker needs memory for the whole table. The seed of some callables cannot be set: a lambda
around `tf.random.uniform` without a seed, or a Keras 3 layer. They draw as in plain TensorFlow. If the graph's seed is
set and the program is the same, their rows are the same for any number of workers; otherwise they are random.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph, ops

from lockstep._src.tables.placement.shard import Shard


def shape_of(initial_value: Any, shape: Any) -> tf.TensorShape:
    """Returns the shape of the whole table.

    Args:
      initial_value: as for `tf.Variable`: a value, or a function without arguments that returns one.
      shape: the shape that was passed to the variable's creator; None if there was none.
    """
    if shape is not None and tf.TensorShape(shape).is_fully_defined():
        return tf.TensorShape(shape)
    if not callable(initial_value):
        return (
            tf.convert_to_tensor(initial_value).shape
            if not hasattr(initial_value, "shape")
            else tf.TensorShape(initial_value.shape)
        )
    if isinstance(initial_value, functools.partial) and initial_value.args:
        return tf.TensorShape(initial_value.args[0])
    # The shape is known only from a call of the function, which is traced into a temporary graph.
    with func_graph.FuncGraph("initial_value_shape").as_default():
        return tf.convert_to_tensor(initial_value()).shape


def own_rows(initial_value: Any, shape: tf.TensorShape, dtype: Any, shard: Shard, name: str) -> Callable[[], tf.Tensor]:
    """Returns a function that computes a worker's rows of the initial value.

    Args:
      initial_value: as in `shape_of`.
      shape: [rows, ...], the shape of the whole table.
      dtype: the type of the table; None for that of the value.
      shard: the worker's rows.
      name: the name of the table; it gives a seed if the initializer has none.

    The returned function raises ValueError if the value has another shape.
    """
    initial_value = _with_seed(initial_value, name)

    def value() -> tf.Tensor:
        whole = initial_value() if callable(initial_value) else initial_value
        whole = tf.convert_to_tensor(whole, dtype)
        if not whole.shape.is_compatible_with(shape):
            raise ValueError(f"table '{name}': its initial value has shape {whole.shape}, wanted {shape}")
        return shard.pick(tf.ensure_shape(whole, shape))

    return value


def name_seed(name: str) -> int:
    """Returns a seed of 31 bits from the name and the current graph's seed, which some initializers do not use."""
    with ops.init_scope():
        # The graph's seed, or TensorFlow's replacement if none is set.
        graph_seed, _ = tf.compat.v1.random.get_seed(0)
    return int.from_bytes(hashlib.sha256(f"{graph_seed}/{name}".encode()).digest()[:4], "little") & 0x7FFFFFFF


def _with_seed(initial_value: Any, name: str) -> Any:
    """Returns an initial value whose initializer has a seed; `tf.compat.v1.get_variable` gives a partial function."""
    if not isinstance(initial_value, functools.partial):
        return initial_value
    seeded = seeded_copy(initial_value.func, name)
    return functools.partial(seeded, *initial_value.args, **initial_value.keywords)


def seeded_copy(initializer: Any, name: str) -> Any:
    """Returns a copy of an initializer with a seed from the name; the same one if it has a seed or needs none.

    Args:
      initializer: an initializer of TensorFlow, Keras or another library, with `seed` in its `get_config()`.
      name: the name of the variable.
    """
    if not hasattr(initializer, "get_config"):
        return initializer
    config = initializer.get_config()
    if "seed" not in config or config["seed"] is not None:
        return initializer
    return type(initializer).from_config({**config, "seed": name_seed(name)})
