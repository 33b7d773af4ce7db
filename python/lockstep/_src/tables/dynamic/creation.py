"""Making dynamic tables by name, as `tf.compat.v1.get_variable` makes variables."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lockstep._src.tables.dynamic import tensorflow1_adapter
from lockstep._src.tables.dynamic.table_options import EmbeddingVariableOption
from lockstep._src.tables.dynamic.variable import DynamicVariable, dynamic_tables


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: Any = tf.int64,
    value_dtype: Any = tf.float32,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Any = None,
    caching_device: Any = None,
    partitioner: Any = None,
    validate_shape: bool = True,
    custom_getter: Any = None,
    constraint: Any = None,
    init_data_source: Any = None,
    ev_option: EmbeddingVariableOption | None = None,
) -> DynamicVariable:
    """A table of embeddings that grows with its keys: that of the name, or a new one.

    In a graph it is named and reused as the present variable scope says. Under eager execution it is new each time.
    After DeepRec's `tf.get_embedding_variable`.

    Keys are taken in by lookups in training. In evaluation (`mode='eval'` or `'infer'`, `evaluating()`) and in exported
    models a key without a row reads the default row: `default_value_no_permission` of the options, 0 by default, or the
    constant that all rows begin with.

    Args:
      name: of the table.
      embedding_dim: D.
      key_dtype: int64, int32 or string.
      value_dtype: of the rows: float32, float16 or bfloat16.
      initializer: None for that of the options, and where they have none that of the variable scope.
      regularizer: must be None: the value of a growing table has no meaning; regularize the rows that you look up.
      trainable: as for variables.
      collections: of the graph.
      caching_device: not used: rows are always read anew.
      partitioner: not used: in a job the table is shared out by keys.
      validate_shape: not used.
      custom_getter: must be None.
      constraint: must be None.
      init_data_source: must be None.
      ev_option: see `EmbeddingVariableOption`.

    Raises:
      NotImplementedError: an argument that must be None is not.
      ValueError: the name is taken, or should be and isn't, as the variable scope wants it; or the table of this name
        is another one.
      TypeError: a type that tables don't have.
    """
    del caching_device, partitioner, validate_shape
    _check_none(
        name,
        regularizer=regularizer,
        custom_getter=custom_getter,
        constraint=constraint,
        init_data_source=init_data_source,
    )
    option = ev_option or EmbeddingVariableOption()
    if initializer is None and option.init_option.initializer is None:
        initializer = tf.compat.v1.get_variable_scope().initializer
    return _of_scope(name, embedding_dim, key_dtype, value_dtype, initializer, trainable, collections, option)


def _check_none(name: str, **arguments: Any) -> None:
    for argument, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"table '{name}': {argument} is not supported for dynamic tables")


def _of_scope(name: str, dim: int, key_dtype: Any, value_dtype: Any, *others: Any) -> DynamicVariable:
    """The table of this name in the present variable scope, or a new one; `others` are further arguments of it."""
    scope = tf.compat.v1.get_variable_scope()
    full_name = f"{scope.name}/{name}" if scope.name else name

    def make() -> DynamicVariable:
        # A variable's name is that of the variable scope, whatever name scope is open.
        with tf.compat.v1.name_scope(None):
            return make_table(full_name, dim, key_dtype, value_dtype, *others)

    if tf.inside_function():
        raise ValueError(f"table '{full_name}': made in a tf.function, which would make one with every trace")
    if tf.executing_eagerly():
        return make()
    table = next((t for t in dynamic_tables() if t.logical_name == full_name), None)
    if table is None:
        if scope.reuse is True:
            raise ValueError(f"Table {full_name} does not exist, or was not created with get_embedding_variable().")
        return make()
    if not scope.reuse:
        raise ValueError(f"Table {full_name} already exists, disallowed. Did you mean to set reuse=tf.AUTO_REUSE?")
    wanted = (dim, tf.as_dtype(key_dtype), tf.as_dtype(value_dtype))
    if (table.dim, table.key_dtype, table.dtype) != wanted:
        raise ValueError(
            f"Trying to share table {full_name}, but specified dimension and types {wanted} and found "
            f"{(table.dim, table.key_dtype, table.dtype)}."
        )
    return table


class _Making(threading.local):
    instead: Callable[..., DynamicVariable] | None = None


_making = _Making()


@contextlib.contextmanager
def tables_made_by(make: Callable[..., DynamicVariable]) -> Iterator[None]:
    """Inside, `make` is called for every new table, with the arguments of `DynamicVariable`."""
    before, _making.instead = _making.instead, make
    try:
        yield
    finally:
        _making.instead = before


def make_table(*args: Any, **kwargs: Any) -> DynamicVariable:
    """A `DynamicVariable` of these arguments, which optimizers know what to do with."""
    if _making.instead is not None:
        return _making.instead(*args, **kwargs)
    table = DynamicVariable(*args, **kwargs)
    tensorflow1_adapter.know(table)
    return table
