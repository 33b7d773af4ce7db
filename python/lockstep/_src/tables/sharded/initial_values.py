"""Initial values of a sharded table; they depend on seed, table and row only, not on the number of workers.

A worker computes only its own rows, with the bits that plain TensorFlow computes for the whole table with the same
seed. So it needs memory only for its share. The function of the initial value is traced into a temporary graph.
row_draws.py finds in it how a row is computed:

| initial value | a worker |
| --- | --- |
| uniform, normal and truncated normal values, zeros, ones, constants | computes its rows |
| these times, plus, minus or divided by a number or a row | computes its rows |
| an array, an eager tensor, a constant of the graph, a fed or a read value | picks its rows |
| any other | evaluates the whole table, of at most `WHOLE_LIMIT_BYTES`, and picks its rows |

The initializers of TensorFlow and Keras are of the first two kinds, except orthogonal and identity matrices.

An initializer without a seed gets one that is derived from the table's name and the graph's seed (`tf.random.set_seed`,
`tf.compat.v1.set_random_seed`). TensorFlow's own choice of a seed would depend on the operations that were built
before. The seed of some callables cannot be set: a lambda around `tf.random.uniform` without a seed, or a Keras 3
layer. They draw as in plain TensorFlow. If the graph's seed is set and the program is the same, their rows are the same
for any number of workers; otherwise they are random.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import func_graph, ops

from lockstep._src.tables.placement.shard import Shard
from lockstep._src.tables.sharded import row_draws

# The size of the largest table that each of several workers evaluates whole, if it cannot compute single rows.
WHOLE_LIMIT_BYTES = 1 << 30


def shape_of(initial_value: Any, shape: Any) -> tf.TensorShape:
    """Returns the shape of the whole table.

    Args:
      initial_value: as for `tf.Variable`: a value, or a function without arguments that returns one.
      shape: the shape that was passed to the variable's creator; None if there was none.
    """
    if shape is not None and tf.TensorShape(shape).is_fully_defined():
        return tf.TensorShape(shape)
    if not callable(initial_value):
        return _shape_of_value(initial_value)
    if isinstance(initial_value, functools.partial) and initial_value.args:
        return tf.TensorShape(initial_value.args[0])
    # The shape is known only from a call of the function, which is traced into a temporary graph.
    with func_graph.FuncGraph("initial_value_shape").as_default():
        return _shape_of_value(initial_value())


def _shape_of_value(value: Any) -> tf.TensorShape:
    return tf.TensorShape(value.shape) if hasattr(value, "shape") else tf.convert_to_tensor(value).shape


def own_rows(initial_value: Any, shape: tf.TensorShape, dtype: Any, shard: Shard, name: str) -> Callable[[], tf.Tensor]:
    """Returns a function that computes a worker's rows of the initial value.

    Args:
      initial_value: as in `shape_of`. A function may be called twice, the first time in a temporary graph.
      shape: [rows, ...], the shape of the whole table.
      dtype: the type of the table; None for the value's type.
      shard: the worker's rows.
      name: the name of the table; it gives a seed if the initializer has none.

    The returned function raises ValueError if the value has another shape. With several workers it also does if it
    cannot compute single rows and the whole table is larger than `WHOLE_LIMIT_BYTES`.
    """
    initial_value = _with_seed(initial_value, name)

    def value() -> tf.Tensor:
        graph = func_graph.FuncGraph("initial_value")
        try:
            rows = _rows_alone(initial_value, shape, dtype, shard, name, graph)
        finally:
            # The graph is part of reference cycles, and may contain a large constant.
            func_graph.dismantle_func_graph(graph)
        if rows is not None:
            return rows
        whole = tf.convert_to_tensor(initial_value() if callable(initial_value) else initial_value, dtype)
        _check_shape(whole.shape, shape, name)
        return shard.pick(tf.ensure_shape(whole, shape))

    return value


def all_rows(initial_value: Any, shape: tf.TensorShape, dtype: Any, name: str) -> Callable[[], tf.Tensor]:
    """Returns a function that computes a whole value as `own_rows` does: for slots, which are as large as a shard."""
    return own_rows(initial_value, shape, dtype, Shard(shape.as_list()[0], 0, 1), name)


def _rows_alone(
    initial_value: Any, shape: tf.TensorShape, dtype: Any, shard: Shard, name: str, graph: func_graph.FuncGraph
) -> tf.Tensor | None:
    """Returns the worker's rows; None if the whole value has to be computed for them, and may be.

    Args:
      initial_value: as in `own_rows`.
      shape: as in `own_rows`.
      dtype: as in `own_rows`.
      shard: as in `own_rows`.
      name: as in `own_rows`.
      graph: an empty graph, into which the value is traced.
    """
    whole = _traced(initial_value, dtype, graph)
    if whole is None:
        _check_size(shape.num_elements() * tf.as_dtype(dtype or tf.float32).size, shard, name)
        return None
    _check_shape(whole.shape, shape, name)
    if isinstance(whole, np.ndarray):
        return tf.convert_to_tensor(shard.pick(whole), dtype)
    if isinstance(whole, ops.EagerTensor):
        return shard.pick(whole)
    recipe = row_draws.recipe_of(whole, shape)
    if recipe is not None and whole.graph is graph:
        recipe = row_draws.outside(recipe, graph)
    if recipe is not None:
        return row_draws.draw(recipe, shape, shard)
    array = tf.get_static_value(whole)
    if array is not None:
        return tf.convert_to_tensor(shard.pick(array), whole.dtype)
    if not row_draws.is_given(whole):
        _check_size(shape.num_elements() * whole.dtype.size, shard, name)
    return None


def _traced(initial_value: Any, dtype: Any, graph: func_graph.FuncGraph) -> Any:
    """Returns the whole value: an array, an eager tensor, or a symbolic tensor; None if it cannot be traced.

    A function is called while `graph` is the default graph. So nothing as large as the table is computed.
    """
    with graph.as_default():
        try:
            given = initial_value() if callable(initial_value) else initial_value
        except Exception:
            # Some functions run only eagerly. An error of the function's own appears when it is called again.
            return None
        if isinstance(given, np.ndarray):
            return given
        whole = tf.convert_to_tensor(given, dtype)
    # Graphs of TensorFlow 1 take no eager tensors.
    return whole.numpy() if isinstance(whole, ops.EagerTensor) and not tf.executing_eagerly() else whole


def _check_shape(got: Any, shape: tf.TensorShape, name: str) -> None:
    if not tf.TensorShape(got).is_compatible_with(shape):
        raise ValueError(f"table '{name}': its initial value has shape {tf.TensorShape(got)}, wanted {shape}")


def _check_size(whole_bytes: int, shard: Shard, name: str) -> None:
    """Raises ValueError if a worker may not compute the whole table, because its share is much smaller."""
    if shard.world_size > 1 and whole_bytes > WHOLE_LIMIT_BYTES:
        raise ValueError(
            f"table '{name}': its initializer cannot draw rows independently; the whole table needs {whole_bytes} "
            f"bytes per worker (limit {WHOLE_LIMIT_BYTES}). Pass an array, or use an initializer of independent rows: "
            "zeros, ones, constants, and uniform, normal and truncated normal values of float types. It may also "
            "multiply, add, subtract or divide by a number or a row"
        )


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
