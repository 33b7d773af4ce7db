"""Creation of dynamic tables by name, as `tf.compat.v1.get_variable` creates variables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.engine import apart
from lockstep._src.engine.thread_value import ThreadValue
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
    """Returns the dynamic table of this name, or creates it; after DeepRec's `tf.get_embedding_variable`.

    In a graph, the current variable scope decides about the name and about reuse. Under eager execution each call
    creates a table.

    Lookups in training add new keys. In evaluation (`mode='eval'` or `'infer'`, `evaluating()`) and in exported models,
    a key without a row reads the default row. Its elements are `default_value_no_permission` of the options, 0 by
    default, or the constant with which all rows begin.

    Args:
      name: the name of the table.
      embedding_dim: the dimension D of the rows.
      key_dtype: the type of the keys: int64, int32 or string.
      value_dtype: the type of the rows: float32, float16 or bfloat16.
      initializer: the initializer of rows. With None, the options' initializer is used, then the variable scope's.
      regularizer: must be None, because the value of a whole dynamic table has no meaning. Regularize the rows that you
        look up.
      trainable: as for variables.
      collections: the graph's collections that the table joins.
      caching_device: not used: every lookup reads the rows.
      partitioner: not used: in a job the keys are distributed over the workers.
      validate_shape: not used.
      custom_getter: must be None.
      constraint: must be None.
      init_data_source: must be None.
      ev_option: see `EmbeddingVariableOption`.

    Raises:
      NotImplementedError: an argument that must be None has a value.
      ValueError: the variable scope does not allow the reuse of this name, or requires a table that does not exist; or
        the table of this name has another dimension or other types.
      TypeError: tables do not support this type.
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
    return _get_or_create(name, embedding_dim, key_dtype, value_dtype, initializer, trainable, collections, option)


def _check_none(name: str, **arguments: Any) -> None:
    for argument, value in arguments.items():
        if value is not None:
            raise NotImplementedError(
                f"table '{name}': got a {argument}, wanted None: it is not supported for dynamic tables"
            )


def _get_or_create(name: str, dim: int, key_dtype: Any, value_dtype: Any, *others: Any) -> DynamicVariable:
    """Returns the table of this name in the current variable scope, or creates it; `others` are further arguments."""
    scope = tf.compat.v1.get_variable_scope()
    full_name = f"{scope.name}/{name}" if scope.name else name

    def make() -> DynamicVariable:
        # A variable's name depends on the variable scope only, and not on name scopes.
        with tf.compat.v1.name_scope(None):
            return make_table(full_name, dim, key_dtype, value_dtype, *others)

    if tf.inside_function():
        raise ValueError(
            f"table '{full_name}': made in a tf.function, which would make a table in every trace; create the table "
            "outside the function"
        )
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


def make_table(*args: Any, **kwargs: Any) -> DynamicVariable:
    """Creates a `DynamicVariable` with these arguments, and makes optimizers work with it."""
    return _maker.value(*args, **kwargs)


def _make(*args: Any, **kwargs: Any) -> DynamicVariable:
    apart.warn(
        f"the table {args[0] if args else kwargs.get('name')!r} is made",
        "Lookups in it fail here, and each worker trains the other weights by itself",
    )
    table = DynamicVariable(*args, **kwargs)
    tensorflow1_adapter.register(table)
    return table


_maker: ThreadValue[Callable[..., DynamicVariable]] = ThreadValue(_make)


def tables_made_by(make: Callable[..., DynamicVariable]) -> contextlib.AbstractContextManager[None]:
    """Makes `make_table` call `make` inside the block, with the arguments of `DynamicVariable`."""
    return _maker.holding(make)
