"""Copies of optimizers of Keras that have not been built yet.

A copy has all attributes of the optimizer, whoever has set them. Keras' own way, `get_config` and `from_config`, would
lose the arguments of subclasses and attributes that were set later. It also fails for schedules that are not registered
and for functions. This module does not import Keras.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

# TensorFlow's entry for a part of an object in its checkpoints.
_Reference = tf.__internal__.tracking.TrackableReference


def copied(optimizer: Any, cls: type | None = None) -> Any:
    """Returns an optimizer with the same attributes, and with a step counter and a learning rate of its own.

    Optimizers inside of it are copied as well. Other objects, such as schedules and functions, are shared. Variables
    of Keras 2 can only be copied outside of graphs.

    Args:
      optimizer: an optimizer of Keras 3 or Keras 2 without slots.
      cls: the class of the copy; None: the optimizer's class.
    """
    memo: dict[int, Any] = {}
    pairs: list[tuple[Any, Any]] = []  # each optimizer, and its copy

    def begin(original: Any, cls: type) -> None:
        # `copy.deepcopy` must not make optimizers: it would make them from their configs.
        made: Any = object.__new__(cls)
        memo[id(original)] = made
        pairs.append((original, made))
        for value in vars(original).values():
            share(value)

    def share(value: Any) -> None:
        """Adds the objects in an attribute that the copy has as well to `memo`; begins copies of optimizers."""
        if isinstance(value, list | tuple | set | frozenset | Mapping):
            for part in list(value.values() if isinstance(value, Mapping) else value):
                share(part)
        elif isinstance(value, _Reference):
            share(value.ref)
        elif id(value) in memo:
            return
        elif hasattr(value, "apply_gradients") and hasattr(value, "get_config"):
            begin(value, type(value))
        elif isinstance(getattr(value, "_value", None), tf.Variable):
            memo[id(value)] = _variable_like(value)
        elif not isinstance(value, tf.Variable) and not _is_tracker(value):
            memo[id(value)] = value

    begin(optimizer, cls or type(optimizer))
    for original, made in pairs:
        vars(made).update(copy.deepcopy(dict(vars(original)), memo))
    for _, made in pairs:
        # Trackers know variables by their addresses.
        for tracker in filter(_is_tracker, vars(made).values()):
            tracker.stored_ids = {name: {id(one) for one in store} for name, (_, store) in tracker.config.items()}
    return pairs[0][1]


def _variable_like(variable: Any) -> Any:
    """Returns a new variable of Keras 3 with the value that a variable has now."""
    with tf.init_scope():  # a step may be traced at this moment
        value = variable._value.numpy()
    made = sys.modules["keras"].Variable(
        value,
        dtype=variable.dtype,
        trainable=variable.trainable,
        aggregation=variable.aggregation,
        synchronization=variable.synchronization,
        name=variable.name,
    )
    made._path = variable.path
    return made


def _is_tracker(value: Any) -> bool:
    """Returns whether something is a `keras.src.utils.tracking.Tracker`."""
    return hasattr(value, "stored_ids") and hasattr(value, "config")
