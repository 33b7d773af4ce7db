"""Replaces the methods with which optimizers of Keras 3 apply sparse gradients, by their rules (`keras_rules.py`).

This module imports Keras. A scope imports it only if the program has Keras 3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.optimizers import adagrad, adam, ftrl, rmsprop, sgd

from lockstep._src.collectives.slices import summed_by_row
from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables.updates import keras_rules
from lockstep._src.tables.updates.apply import apply_rule
from lockstep._src.tables.updates.lazy_adam_keras import LazyAdam
from lockstep._src.tables.updates.rules import Rule, has_method_of

# The class that defines an `update_step` -> the rule of this method. All but this library's own class have a row in
# `symbols.KERAS_UPDATE_STEPS`.
_KNOWN: dict[type, keras_rules.Description] = {
    sgd.SGD: keras_rules.sgd,
    adagrad.Adagrad: keras_rules.adagrad,
    adam.Adam: keras_rules.adam,
    ftrl.Ftrl: keras_rules.ftrl,
    rmsprop.RMSprop: keras_rules.rmsprop,
    LazyAdam: keras_rules.lazy_adam,
}


def rule_of(optimizer: Any) -> Rule | None:
    """Returns the rule by which an optimizer of Keras 3 applies sparse gradients; None if no rule is known.

    A subclass has the rule of its base if it does not override the base's `update_step`.
    """
    describe = _description_of(optimizer)
    return None if describe is None else describe(optimizer, optimizer._get_current_learning_rate())


def _description_of(optimizer: Any) -> keras_rules.Description | None:
    for cls, description in _KNOWN.items():
        if isinstance(optimizer, cls) and has_method_of(optimizer, cls, "update_step"):
            return description
    return None


def summed(gradient: Any) -> Any:
    """Returns a gradient whose slices are summed for each row; other gradients unchanged.

    If a row has several slices, Keras squares each slice. The result would then depend on how a batch's rows are spread
    over workers, and differ from the result of the same gradient in dense form.
    """
    return summed_by_row(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def intercept_updates(interception: Interception) -> None:
    """Makes optimizers of Keras 3 apply sparse gradients by fused updates during the interception.

    It replaces the `update_step` of the known classes. If a subclass overrides `update_step` and calls the base's
    method with a changed gradient, the fused update applies this gradient.
    """
    for cls, describe in _KNOWN.items():
        wrap = functools.partial(_wrap_update_step, describe)
        if cls is LazyAdam:
            interception.replace_attribute(cls, "update_step", wrap)
        else:
            interception.replace(symbols.KERAS_UPDATE_STEPS[cls.__name__], wrap)


def _wrap_update_step(describe: keras_rules.Description, update_step: Callable[..., None]) -> Any:
    @functools.wraps(update_step)
    def wrapped(self: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if context.options.fused_updates and isinstance(gradient, tf.IndexedSlices):
            rule = describe(self, learning_rate)
            gradient = tf.cast(gradient, variable.dtype)
            if rule is not None and apply_rule(rule, variable, gradient.values, gradient.indices) is not None:
                return
            gradient = summed(gradient)
        update_step(self, gradient, variable, learning_rate)

    return wrapped
