"""`EarlyStopping(restore_best_weights=True)` of Keras 3 for models with dynamic tables.

The callback keeps the weights of the best epoch in memory, as arrays. A dynamic table has no value as an array. It may
also take most of the memory, where a second copy would end the process. So each worker copies its part of the table to
files of the temporary folder (TMPDIR), as it would to a checkpoint, and restores it from them.

All workers agree on the best epoch, since they have the same metrics. This module imports Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.engine import file_errors
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around, attribute_replaced
from lockstep._src.tables.dynamic import is_dynamic, serialized

_ADVICE = (
    "EarlyStopping(restore_best_weights=True) copies dynamic tables to the temporary folder. Set TMPDIR to a folder "
    "with more space, or keep the best weights with ModelCheckpoint(save_best_only=True)"
)


def intercept_best_weights(interception: Interception) -> None:
    """Makes `EarlyStopping` keep and restore dynamic tables."""
    for hook in symbols.BEST_WEIGHTS:
        interception.replace(hook, around(_with_tables))


def _with_tables(method: Callable[..., Any], callback: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs a method of the callback, in which the model's weights include its dynamic tables."""
    model = callback.model
    if not callback.restore_best_weights or not any(map(_is_table, model.weights)):
        return method(callback, *args, **kwargs)
    with (
        attribute_replaced(model, "get_weights", lambda _: lambda: _weights_of(model)),
        attribute_replaced(model, "set_weights", lambda _: lambda weights: _set_weights(model, weights)),
    ):
        return method(callback, *args, **kwargs)


def _is_table(variable: Any) -> bool:
    return is_dynamic(getattr(variable, "_value", None))


def _weights_of(model: Any) -> list[Any]:
    try:
        return [serialized.Copy(v._value) if _is_table(v) else v.numpy() for v in model.weights]
    except tf.errors.OpError as error:
        raise file_errors.named(error, f"{error.message}. {_ADVICE}") from None


def _set_weights(model: Any, weights: Sequence[Any]) -> None:
    for variable, value in zip(model.weights, weights, strict=True):
        if isinstance(value, serialized.Copy):
            value.restore()
        else:
            variable.assign(value)
