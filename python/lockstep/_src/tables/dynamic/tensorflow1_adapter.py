"""Makes optimizers of `tf.compat.v1.train` work with dynamic tables.

TensorFlow has no interface by which a variable can decide how it is optimized. Therefore some functions are replaced as
long as there are tables. For other variables they do the same as before:

| replaced | effect for a table |
| --- | --- |
| `optimizer._get_processor` | applies its gradient: by a fused rule, or by a stand-in (`standins.py`) |
| the same, for a variable with `fuses_updates` | applies its slices by a fused rule, if there is one |
| `Optimizer.apply_gradients` | ends the step in the table when all updates have been made |
| an optimizer's `_create_slots`, while it applies | makes no slots if there is a rule: they are columns of the table |
| `embedding_lookup_sparse_impl` | gives a table the ids before duplicates were dropped |
| `tf.gradients`, `tf.GradientTape.gradient` | return one slice for each row (`tables/sharded/seen_gradients.py`) |
| `gen_resource_variable_ops.variable_shape` | returns the shape in a table's handle, [0, D], without an operation |
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import handle_data_util
from tensorflow.python.training import optimizer as tf_optimizer

from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook_set import HookSet
from lockstep._src.hooks.interception import Interception, around, attribute_replaced
from lockstep._src.tables import sharded, updates
from lockstep._src.tables.dynamic import keras_adapter, local_lookup, standins
from lockstep._src.tables.dynamic.variable import DynamicVariable, is_dynamic, shapes_of_one_row


def register(table: Any) -> None:
    """Makes optimizers work with tables for as long as this one exists.

    It is a dynamic table, or a variable with the attribute `fuses_updates`: outside of a scope, too, its slices are
    applied by fused updates, which add the slices of one row.
    """
    hooks.hold_for(table)
    keras_adapter.register(table)


def _intercept(interception: Interception) -> None:
    interception.replace(symbols.GET_PROCESSOR, _wrap_get_processor)
    interception.replace(symbols.END_STEP, _wrap_apply)
    interception.replace(symbols.POOLING, _wrap_pooling)
    interception.replace(symbols.VARIABLE_SHAPE, _wrap_variable_shape)
    sharded.intercept_gradients(interception)


# Modules above this one add the symbols that they replace for tables; savers do.
hooks = HookSet(symbols.TABLES, _intercept)


def _wrap_pooling(pool: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(pool)

    @functools.wraps(pool)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        is_table = len(given["params"]) == 1 and is_dynamic(given["params"][0])
        with local_lookup.pooling(given["ids"]) if is_table else contextlib.nullcontext():
            return pool(*args, **kwargs)

    return wrapped


def _wrap_variable_shape(variable_shape: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function for gradients of TensorFlow 1's branches, which create zeros of this shape."""

    @functools.wraps(variable_shape)
    def wrapped(input: Any, out_type: Any = tf.int32, name: str | None = None) -> Any:
        if isinstance(input, tf.Tensor) and not hasattr(input, "numpy"):
            data = handle_data_util.get_resource_handle_data(input)
            shape = tf.TensorShape(data.shape_and_type[0].shape if data.is_set else None)
            if shape.is_fully_defined() and shape.num_elements() == 0:
                return tf.constant(shape.as_list(), out_type, name=name)
        return variable_shape(input, out_type, name)

    return wrapped


def _wrap_get_processor(get_processor: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(get_processor)
    def wrapped(v: Any) -> Any:
        if is_dynamic(v):
            return _TableProcessor(v)
        processor = get_processor(v)
        return _FusingProcessor(processor) if getattr(v, "fuses_updates", False) else processor

    return wrapped


class _TableProcessor(tf_optimizer._OptimizableVariable):
    """The processor of a table: an optimizer calls it to apply the table's gradient."""

    def __init__(self, table: DynamicVariable) -> None:
        self._table = table

    def target(self) -> DynamicVariable:
        return self._table

    def update_op(self, optimizer: Any, g: Any) -> Any:
        g = standins.checked(self._table, g)
        applied = updates.apply_sparse(optimizer, self._table, g.values, g.indices)
        return _apply_by_stand_in(optimizer, self._table, g) if applied is None else applied


class _FusingProcessor(tf_optimizer._OptimizableVariable):
    """The processor of a variable whose slices are applied by a fused rule; `processor` applies other gradients."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def target(self) -> Any:
        return self._processor.target()

    def update_op(self, optimizer: Any, g: Any) -> Any:
        variable = self.target()
        # TensorFlow refuses slices of a variable with a constraint.
        if context.options.fused_updates and isinstance(g, tf.IndexedSlices) and variable.constraint is None:
            applied = updates.apply_sparse(optimizer, variable, g.values, g.indices)
            if applied is not None:
                return applied
        return self._processor.update_op(optimizer, g)


def _wrap_apply(apply_gradients: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply_gradients)
    def wrapped(self: Any, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        pairs = list(grads_and_vars)
        tables = [v for g, v in pairs if is_dynamic(v) and g is not None]
        if not tables:
            return apply_gradients(self, pairs, global_step, name)
        with _slots_in_tables(self):
            applied = apply_gradients(self, pairs, global_step, name)
        return _end_step(applied, tables, global_step)

    return wrapped


@contextlib.contextmanager
def _slots_in_tables(optimizer: Any) -> Iterator[None]:
    """Makes an optimizer create slots only for variables and, if it has no rule, for the stand-ins of tables."""

    def create(create_slots: Callable[..., None], variables: list[Any]) -> None:
        has_rule = updates.rule_of(optimizer) is not None
        # Tables with a rule are in the list, as optimizers may also create objects that serve all variables.
        others = [v for v in variables if has_rule or not is_dynamic(v)]
        if others:
            with shapes_of_one_row(), _no_slots_of_tables(optimizer):
                create_slots(others)
        for table in variables:
            if is_dynamic(table) and not has_rule:
                stand_in = standins.of(optimizer, table)
                with standins.slots_of_any_length(table.dim):
                    create_slots([stand_in])

    with attribute_replaced(optimizer, "_create_slots", around(create)):
        yield


@contextlib.contextmanager
def _no_slots_of_tables(optimizer: Any) -> Iterator[None]:
    names = ("_zeros_slot", "_get_or_make_slot", "_get_or_make_slot_with_initializer")

    def unless_table(make_slot: Callable[..., Any]) -> Callable[..., Any]:
        return lambda variable, *args, **kwargs: None if is_dynamic(variable) else make_slot(variable, *args, **kwargs)

    with contextlib.ExitStack() as replaced:
        for name in names:
            replaced.enter_context(attribute_replaced(optimizer, name, unless_table))
        yield


def _end_step(applied: Any, tables: list[DynamicVariable], global_step: Any) -> Any:
    """Ends the step in all tables after `applied`."""
    tables = [table for table in {id(t): t for t in tables}.values() if table.has_step]
    if not tables:
        return applied
    if tf.executing_eagerly():
        for table in tables:
            table.end_step(global_step)
        return applied
    with tf.control_dependencies([applied]):
        step = None if global_step is None else tf.identity(_read(global_step))
        return tf.group(*[table.end_step(step) for table in tables], name="end_step_in_tables")


def _read(global_step: Any) -> tf.Tensor:
    return global_step.read_value() if hasattr(global_step, "read_value") else tf.convert_to_tensor(global_step)


def _apply_by_stand_in(optimizer: Any, table: DynamicVariable, gradient: tf.IndexedSlices) -> Any:
    stand_in = standins.of(optimizer, table)
    slots = [
        standins.Slot(name, variable, standins.initial_of(variable))
        for name in optimizer.get_slot_names()
        if (variable := optimizer.get_slot(stand_in, name)) is not None
    ]

    def update(summed: tf.Tensor) -> Any:
        numbers = tf.range(tf.shape(summed)[0])
        return optimizer._resource_apply_sparse_duplicate_indices(summed, stand_in, numbers)

    return standins.update_rows(optimizer, table, gradient, slots, update)
