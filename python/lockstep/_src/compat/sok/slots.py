"""The slots of optimizers, under the names of Keras' legacy optimizers, which SOK's files have.

A slot of a dynamic variable is a column of the engine's table. A slot of a static one is a variable of TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.engine import library
from lockstep._src.tables import updates
from lockstep._src.tables.dynamic import keras_adapter

# The slots of each optimizer: SOK's name, and the other libraries' names.
_SLOTS: dict[str, dict[str, tuple[str, ...]]] = {
    "SGD": {"momentum": ("momentum", "momentums")},
    "Adamax": {"m": ("m", "momentum"), "v": ("v", "norm", "u")},
    "Adadelta": {
        "accum_grad": ("accum_grad", "accum", "accumulated_grad", "accumulated_grads"),
        "accum_var": ("accum_var", "accum_update", "accumulated_delta_var", "accumulated_delta_vars"),
    },
    "Adagrad": {"accumulator": ("accumulator", "accumulators")},
    "Ftrl": {"accumulator": ("accumulator", "accum", "accumulators"), "linear": ("linear", "linears")},
    "Adam": {"m": ("m", "momentum", "momentums"), "v": ("v", "velocity", "velocities")},
}
# Classes of TensorFlow 1 with another name.
_ALIASES = {"GradientDescentOptimizer": "SGD", "MomentumOptimizer": "SGD"}


class _Column(NamedTuple):
    """A slot of a dynamic variable: SOK's name, the name of the column, and its initial value."""

    name: str
    column: str
    initial: Any


def optimizer_name(optimizer: Any) -> str:
    """Returns the name of an optimizer in files, such as "Adam"; raises TypeError for one that SOK's files lack.

    Adamax is called "Adam" there, which its name contains, as in the original's files.
    """
    return _kind(optimizer).replace("Adamax", "Adam")


def _kind(optimizer: Any) -> str:
    """Returns the key of an optimizer in `_SLOTS`."""
    cls = type(_inner(optimizer)).__name__
    found = [name for name in _SLOTS if name in _ALIASES.get(cls, cls)]
    if not found:
        raise TypeError(f"optimizer: got {cls}, wanted one of {', '.join(_SLOTS)}, or a wrapper of it")
    return max(found, key=len)


def names(optimizer: Any) -> list[str]:
    """Returns SOK's names of the slots that an optimizer has, in the order of the legacy optimizer."""
    kind = _kind(optimizer)
    return [] if kind == "SGD" and not _has_momentum(_inner(optimizer)) else list(_SLOTS[kind])


def _has_momentum(optimizer: Any) -> bool:
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return isinstance(optimizer, tf.compat.v1.train.MomentumOptimizer)
    return bool(optimizer._momentum if _is_legacy(optimizer) else getattr(optimizer, "momentum", 0))


def ensure(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the slots of variables exist.

    An optimizer of Keras 3, or of Keras 2 that is not a legacy one, learns all its variables when it is built. One that
    is not built yet is built here, for all the static variables that have rows on this rank.

    Args:
      optimizer: a wrapper, or for static variables also an optimizer.
      variables: variables of SOK.

    Raises:
      TypeError: the optimizer is not a wrapper, and a variable is dynamic.
      ValueError: the optimizer was built without one of the variables.
    """
    for variable in variables:
        if isinstance(variable, DynamicVariable):
            for column in _columns(optimizer, variable):
                library.ops.lockstep_dynamic_table_read_rows(
                    variable.handle, tf.zeros([0], tf.int64), column.initial, slot=column.column
                )
    own = [v for v in variables if not isinstance(v, DynamicVariable) and not has_no_rows(v)]
    if own and names(optimizer):
        _make_slot_variables(_inner(optimizer), own)
        if without := [v.name for v in own if not has(optimizer, v)]:
            raise ValueError(
                f"optimizer: got {type(_inner(optimizer)).__name__} that was built without "
                f"{', '.join(map(repr, without))}, wanted one that is not built yet, or was built with all variables"
            )


def has(optimizer: Any, variable: Any) -> bool:
    """Returns whether an optimizer has slots for a variable; a dynamic variable's slots are made on demand."""
    if isinstance(variable, DynamicVariable):
        return _is_wrapper(optimizer)
    return len(_slot_variables(optimizer, variable)) == len(names(optimizer))


def has_no_rows(variable: Any) -> bool:
    """Returns whether a variable is a localized one of another rank. It is not trained here, and may have no slots."""
    return not isinstance(variable, DynamicVariable) and variable.shape[0] == 0


def get(optimizer: Any, variable: Any, name: str) -> Any:
    """Returns a slot: of a dynamic variable its values in the order of `sok.export`, [L, D]; else a variable.

    Raises:
      KeyError: the optimizer has no such slot for the variable.
    """
    if isinstance(variable, DynamicVariable):
        (values,) = variable.export_slots(_column(optimizer, variable, name).column)
        return values
    return _slot_variables(optimizer, variable)[name]


def read(optimizer: Any, variable: Any, name: str) -> np.ndarray:
    """Returns a slot of this rank's rows, [L, D], in the order of `rows.read`."""
    if has_no_rows(variable):
        return np.zeros(variable.shape, np.dtype(variable.dtype.as_numpy_dtype))
    return get(optimizer, variable, name).numpy()


def write(optimizer: Any, variable: Any, name: str, keys: np.ndarray, values: np.ndarray) -> None:
    """Sets a slot of rows of this rank. The slots of a static variable must exist; see `ensure`.

    Args:
      optimizer: a wrapper, or for a static variable also an optimizer.
      variable: the variable.
      name: SOK's name of the slot.
      keys: [N] distinct keys that this rank has.
      values: [N, D].
    """
    if isinstance(variable, DynamicVariable):
        column = _column(optimizer, variable, name)
        library.ops.lockstep_dynamic_table_write_rows(
            variable.handle,
            variable.find(tf.cast(keys, tf.int64)),
            tf.cast(values, tf.float32),
            column.initial,
            slot=column.column,
        )
        return
    if has_no_rows(variable):
        return
    slot = get(optimizer, variable, name)
    local = tf.cast(variable.key_map(np.asarray(keys).astype(np.int64)), tf.int64)
    slot.scatter_update(tf.IndexedSlices(tf.cast(values, slot.dtype), local))


def _inner(optimizer: Any) -> Any:
    return optimizer.optimizer if _is_wrapper(optimizer) else optimizer


def _is_wrapper(optimizer: Any) -> bool:
    """Returns whether this is a wrapper. Its module uses this one."""
    return hasattr(optimizer, "slots_of") and hasattr(optimizer, "optimizer")


def _is_legacy(optimizer: Any) -> bool:
    return hasattr(optimizer, "_create_hypers")


def _column(optimizer: Any, table: DynamicVariable, name: str) -> _Column:
    columns = {column.name: column for column in _columns(optimizer, table)}
    return columns[name]


def _columns(optimizer: Any, table: DynamicVariable) -> list[_Column]:
    """Returns the slots of a dynamic variable.

    Raises:
      TypeError: the optimizer is not a wrapper.
    """
    if not hasattr(optimizer, "slots_of"):
        raise TypeError(
            f"optimizer: got {type(optimizer).__name__}, wanted sok.OptimizerWrapper of it for the dynamic variable "
            f"'{table.logical_name}'"
        )
    owner, slots = optimizer.slots_of(table)
    if not slots:
        return []
    columns = updates.slot_names(owner, table, [slot.name for slot in slots])
    initials = [tf.reduce_max(tf.cast(slot.initial, tf.float32)) for slot in slots]
    known = _SLOTS[_kind(optimizer)]
    own = [next((sok for sok, others in known.items() if slot.name in others), slot.name) for slot in slots]
    return [_Column(*one) for one in zip(own, columns, initials, strict=True)]


def _make_slot_variables(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the slots of static variables, unless the optimizer was built and so can have no more of them."""
    if hasattr(optimizer, "get_slot"):
        if _is_legacy(optimizer):
            optimizer._create_hypers()
        optimizer._create_slots(variables)
    # Keras 2 has no property `built`, and no attribute before an optimizer is built.
    elif not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        for variable in variables:
            keras_adapter.register(variable)  # the program may have loaded Keras after it made the variable
        optimizer.build(variables)


def _slot_variables(optimizer: Any, variable: Any) -> dict[str, tf.Variable]:
    """Returns the slots of a variable that is not dynamic, by SOK's names; those that exist."""
    inner = _inner(optimizer)
    if hasattr(inner, "slots_of"):  # `sok.SGD`
        return {}
    known = _SLOTS[_kind(optimizer)]
    if hasattr(inner, "get_slot"):
        slots = {name: _slot_or_none(inner, variable, name) for name in inner.get_slot_names()}
    else:
        slots = dict(_slots_by_attribute(inner, variable))
    found = {}
    for sok, others in known.items():
        slot = next((slots[other] for other in others if slots.get(other) is not None), None)
        if slot is not None:
            found[sok] = getattr(slot, "_value", slot)
    return found


def _slot_or_none(optimizer: Any, variable: Any, name: str) -> Any:
    try:
        return optimizer.get_slot(variable, name)
    except KeyError:  # a legacy optimizer that has slots for other variables only
        return None


def _slots_by_attribute(optimizer: Any, variable: Any) -> Iterator[tuple[str, Any]]:
    """Yields the slots of a variable in an optimizer of Keras since version 2.11, by the attributes that list them."""
    if hasattr(optimizer, "_trainable_variables_indices"):
        index = optimizer._trainable_variables_indices.get(optimizer._var_key(variable))
    else:
        index = getattr(optimizer, "_index_dict", {}).get(optimizer._var_key(variable))
    if index is None:
        return
    for attribute, values in vars(optimizer).items():
        if isinstance(values, list) and len(values) > index and values[index] is not variable:
            yield attribute.strip("_"), values[index]
