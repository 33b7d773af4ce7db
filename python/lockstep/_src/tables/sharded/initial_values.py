"""Initial values of a sharded table: a function of seed, table and row alone, never of the number of workers.

Every worker asks the user's initializer for the whole table and keeps its own rows. So an initializer with a seed gives
the rows that it would give in plain TensorFlow. One without a seed of its own gets one made of the table's name and the
graph's seed (`tf.random.set_seed`, `tf.compat.v1.set_random_seed`): what TensorFlow itself would choose depends on what
was built before.

While it initializes, a worker needs memory for the whole table. A callable that hides its randomness from us (a lambda
around `tf.random.uniform` without a seed, a Keras 3 layer) draws as TensorFlow does: the rows are then the same for any
number of workers where the graph's seed is set and the program is the same, and random otherwise.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph, ops

from lockstep._src.tables.sharded.shard import Shard


def shape_of(initial_value: Any, shape: Any) -> tf.TensorShape:
    """The shape of the whole table.

    Args:
      initial_value: as `tf.Variable` takes it: a value, or a function without arguments that gives one.
      shape: as the variable's creator was told; None where it was not.
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
    # Only the function knows. It is traced into a graph that is thrown away.
    with func_graph.FuncGraph("initial_value_shape").as_default():
        return tf.convert_to_tensor(initial_value()).shape


def own_rows(initial_value: Any, shape: tf.TensorShape, dtype: Any, shard: Shard, name: str) -> Callable[[], tf.Tensor]:
    """A function that gives a worker's rows of the initial value.

    Args:
      initial_value: as in `shape_of`.
      shape: [rows, ...], of the whole table.
      dtype: of the table; None for that of the value.
      shard: which rows.
      name: of the table; stands in for a seed where the initializer has none.

    Raises (the function): ValueError for a value of another shape.
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
    """A seed of 31 bits that depends on the name and the present graph's seed, which not all initializers look at."""
    with ops.init_scope():
        # The graph's seed, or what TensorFlow has in its place.
        graph_seed, _ = tf.compat.v1.random.get_seed(0)
    return int.from_bytes(hashlib.sha256(f"{graph_seed}/{name}".encode()).digest()[:4], "little") & 0x7FFFFFFF


def _with_seed(initial_value: Any, name: str) -> Any:
    """The same, with an initializer of its own that has a seed. `tf.compat.v1.get_variable` binds one to its shape."""
    if not isinstance(initial_value, functools.partial):
        return initial_value
    seeded = seeded_copy(initial_value.func, name)
    return functools.partial(seeded, *initial_value.args, **initial_value.keywords)


def seeded_copy(initializer: Any, name: str) -> Any:
    """A copy of an initializer that draws from the name's seed; the initializer itself where it has or needs no other.

    Args:
      initializer: an instance of one of TensorFlow's, Keras' or the like: with `seed` in its `get_config()`.
      name: of the variable.
    """
    if not hasattr(initializer, "get_config"):
        return initializer
    config = initializer.get_config()
    if "seed" not in config or config["seed"] is not None:
        return initializer
    return type(initializer).from_config({**config, "seed": name_seed(name)})
