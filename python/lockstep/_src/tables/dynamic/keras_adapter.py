"""Makes optimizers of Keras 3 work with dynamic tables.

Keras has no interface by which a variable can decide how it is optimized. Therefore methods of its optimizers are
replaced while there are tables (`tensorflow1_adapter.py`). For a table, they apply its gradient by a fused rule or by a
stand-in (`standins.py`), and then end the step in the table. Slots are columns of the table. The slots that Keras
creates for the table have one row at first; in each step they take the values of a stand-in.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.collectives import ordered
from lockstep._src.collectives.slices import summed_by_row
from lockstep._src.engine import apart
from lockstep._src.engine.context import context
from lockstep._src.graph import parts
from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook_set import HookSet
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables import updates
from lockstep._src.tables.dynamic import standins
from lockstep._src.tables.dynamic.variable import DynamicVariable, is_dynamic, shapes_of_one_row


def register(table: Any) -> None:
    """Makes optimizers of Keras 3, if the program has loaded it, work with tables while this one exists.

    See `tensorflow1_adapter.register`.
    """
    if hasattr(sys.modules.get("keras.src.backend.tensorflow.optimizer"), "TFOptimizer"):
        _hooks.hold_for(table)


def _intercept(interception: Interception) -> None:
    interception.replace(symbols.KERAS_BACKEND_UPDATE, _wrap_update_step)
    interception.replace(symbols.KERAS_BACKEND_APPLY, _wrap_apply)
    interception.replace(symbols.KERAS_CLIP, _wrap_clip)
    interception.replace(symbols.KERAS_ADD_SLOT, _wrap_add_slot)
    interception.replace(symbols.KERAS_CHECK_FINITE, _wrap_check_finite)


_hooks = HookSet(symbols.TABLES, _intercept)


def _table_of(variable: Any) -> Any:
    """Returns the dynamic table that a variable is or wraps; None for other variables."""
    variable = getattr(variable, "_value", variable)
    return variable if is_dynamic(variable) else None


def _wrap_apply(apply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    def wrapped(self: Any, grads: Any, trainable_variables: Any) -> Any:
        tables = [_table_of(v) is not None for v in trainable_variables]
        if any(tables):
            for option in ("gradient_accumulation_steps", "use_ema", "weight_decay"):
                if getattr(self, option, None):
                    raise NotImplementedError(f"{self.name}: {option} is not implemented for dynamic tables")
            # Gradients from a tf.cond have a dense shape.
            grads = [_without_dense_shape(g) if is_table else g for g, is_table in zip(grads, tables, strict=True)]
        return apply(self, grads, trainable_variables)

    return wrapped


def _without_dense_shape(gradient: Any) -> Any:
    is_slices = isinstance(gradient, tf.IndexedSlices)
    return tf.IndexedSlices(gradient.values, gradient.indices) if is_slices else gradient


def _wrap_check_finite(check_finite: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the check to look at the slices of a table's gradient, in a job at the slices of all workers."""

    @functools.wraps(check_finite)
    def wrapped(self: Any, grads: Any) -> Any:
        slices = [isinstance(g, tf.IndexedSlices) for g in grads]
        if not any(slices):
            return check_finite(self, grads)
        finite = check_finite(self, [g.values if is_slices else g for g, is_slices in zip(grads, slices, strict=True)])
        if context.world_size == 1:
            return finite
        return tf.cast(ordered.allreduce(tf.cast(finite, tf.int32), op="min", name="all_finite"), tf.bool)

    return wrapped


def _wrap_update_step(update_step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update_step)
    def wrapped(self: Any, grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
        pairs = list(zip(grads, trainable_variables, strict=True))
        others = [(_left_of(self, g, v), v) for g, v in pairs if _table_of(v) is None]
        others = [(g, v) for g, v in others if g is not None]
        if others:
            update_step(self, *map(list, zip(*others, strict=True)), learning_rate)
        ended = {}
        for gradient, variable in pairs:
            table = _table_of(variable)
            if table is not None:
                _apply(self, table, gradient, learning_rate)
                ended[id(table)] = table
        for table in ended.values():
            if table.has_step:
                table.end_step()

    return wrapped


def _left_of(optimizer: Any, gradient: Any, variable: Any) -> Any:
    """Returns the gradient that Keras has to apply to a variable; None if a fused update has applied it.

    Only slices of a variable with `fuses_updates` are not left as they are (`tensorflow1_adapter.register`). If there
    is no rule for them, the slices of one row are added: Keras would square each.
    """
    value = getattr(variable, "_value", variable)
    if not (isinstance(gradient, tf.IndexedSlices) and getattr(value, "fuses_updates", False)):
        return gradient
    values = tf.cast(gradient.values, value.dtype)
    if context.options.fused_updates and updates.apply_sparse(optimizer, value, values, gradient.indices) is not None:
        return None
    return summed_by_row(tf.IndexedSlices(values, gradient.indices, gradient.dense_shape))


def _wrap_add_slot(add_slot: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the creation of slots to record the slots of tables, and to give them a variable number of rows."""

    @functools.wraps(add_slot)
    def wrapped(self: Any, reference_variable: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
        table = _table_of(reference_variable)
        # A table that is not a weight of a layer has no shape that Keras accepts.
        with contextlib.nullcontext() if table is None else shapes_of_one_row():
            slot = add_slot(self, reference_variable, name, *args, **kwargs)
        if table is not None and slot is not None:
            # `init_scope`, because Keras may build its optimizers while a step is traced.
            with tf.init_scope():
                begins_with = _number(kwargs.get("initializer", args[0] if args else "zeros"), table)
                # It has as many rows as a step touches. It is local to this worker, so no scope's creator is called.
                value = resource_variable_ops.ResourceVariable(
                    tf.fill([1, table.dim], begins_with), shape=tf.TensorShape([None, table.dim]), trainable=False
                )
            slot._value = value
            own: type = type(slot)
            slot.__class__ = _class_of_slots(own)
            standins.of(self, table).slots.append(standins.Slot(name, value, begins_with))
        return slot

    return wrapped


@functools.cache
def _class_of_slots(cls: type) -> type:
    """Returns a subclass of Keras' variable class for slots of a table, which Keras' files do not contain.

    In such a file they are zeros with the shape that Keras knows, so that another slot of this kind can be loaded.
    """

    def numpy(self: Any) -> np.ndarray:
        return np.zeros(self.shape, self.dtype)

    return type(cls.__name__, (cls,), {"numpy": numpy})


def _number(initializer: Any, table: DynamicVariable) -> float:
    """Returns the constant that an initializer of Keras gives; raises NotImplementedError if it gives no constant."""
    drawn = sys.modules["keras"].initializers.get(initializer)((1, table.dim), dtype="float32").numpy()
    if drawn.min() != drawn.max():
        raise NotImplementedError(
            f"table '{table.logical_name}': an optimizer's slot has the initializer {initializer}, wanted a constant, "
            "such as 'zeros'"
        )
    return float(drawn[0, 0])


def _wrap_clip(clip_gradients: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras' clipping, which would make slices dense; a table's touched rows are summed and clipped instead."""

    @functools.wraps(clip_gradients)
    def wrapped(self: Any, grads: Any) -> Any:
        # Only slices of tables have no dense shape.
        tables = [i for i, g in enumerate(grads) if isinstance(g, tf.IndexedSlices) and g.dense_shape is None]
        if not tables or not (self.clipnorm or self.global_clipnorm or self.clipvalue):
            return clip_gradients(self, grads)
        if context.world_size > 1 and not self.clipvalue and not apart.is_scope_open():
            raise NotImplementedError(
                f"{self.name}: clipping by norm is not implemented for dynamic tables on several workers outside of a "
                "scope, because each worker has a part of the gradient; use clipvalue"
            )
        numbers, summed = {}, list(grads)
        for i in tables:
            numbers[i], summed[i] = standins.touched(grads[i])
            parts.note(summed[i])
        clipped = list(clip_gradients(self, summed))
        for i in tables:
            clipped[i] = tf.IndexedSlices(clipped[i], numbers[i][:-1])
        return clipped

    return wrapped


def _apply(optimizer: Any, table: DynamicVariable, gradient: Any, learning_rate: Any) -> None:
    gradient = standins.checked(table, gradient)
    if updates.apply_sparse(optimizer, table, gradient.values, gradient.indices) is not None:
        return
    stand_in = standins.of(optimizer, table)
    # The optimizer finds its slots by the variable's key.
    indices = optimizer._trainable_variables_indices
    indices[optimizer._var_key(stand_in)] = indices[optimizer._var_key(table)]

    def update(summed: tf.Tensor) -> None:
        # In a function, TensorFlow itself keeps the order of the update and of the reads that follow.
        optimizer.update_step(tf.concat([summed, tf.zeros([1, table.dim])], 0), stand_in, learning_rate)

    standins.update_rows(optimizer, table, gradient, stand_in.slots, update)
