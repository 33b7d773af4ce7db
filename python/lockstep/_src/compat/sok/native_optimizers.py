"""Makes optimizers of Keras update the tables of SOK 1.x, which `OptimizerScope` promises.

Optimizers of TensorFlow 1 and Keras 3 know dynamic tables (`tables/dynamic/tensorflow1_adapter.py`). Those of Keras 2
do not. Therefore some methods are replaced from the first table on:

| replaced | result |
| --- | --- |
| `apply_gradients` of Keras 2's optimizers, legacy or not | dynamic tables are updated by rows |
| `build` of Keras 2's optimizers | it accepts dynamic tables; a `LossScaleOptimizer` calls it |
| `apply_gradients` of Keras 3's optimizers | it accepts arguments of Keras 2, which 1.x's programs pass |

A rule of the engine computes what the optimizer does for an ordinary variable: Adam lets the moments of all rows decay.
An optimizer without a rule updates the rows that have a gradient, through a stand-in.

Each table belongs to one rank's optimizer alone, and its gradient is a sum over the ranks already. So no strategy
aggregates it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf

from lockstep._src.collectives.slices import summed_by_row
from lockstep._src.compat.sok import job, optimizers
from lockstep._src.compat.sok.embedding_tables import EmbeddingVariable, HashedTable
from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook_set import HookSet
from lockstep._src.hooks.interception import Interception, around
from lockstep._src.tables import updates
from lockstep._src.tables.dynamic import keras_adapter, standins
from lockstep._src.tables.dynamic.variable import shapes_of_one_row
from lockstep._src.tables.updates import keras2

_hooks = HookSet(symbols.TABLES)


def register(table: EmbeddingVariable) -> None:
    """Makes optimizers of the Keras versions that the program has loaded update tables, as long as this one lives."""
    for module, install in _INSTALLS:
        if module in sys.modules:
            _hooks.add(install)
    _hooks.hold_for(table)
    if isinstance(table, HashedTable):
        keras_adapter.register(table)


class OptimizerScope:
    """A scope in which any optimizer updates tables; see `sparse_operation_kit.OptimizerScope`."""

    __module__ = "sparse_operation_kit"

    def __init__(self, trainable_variables: Any) -> None:
        if not isinstance(trainable_variables, (list, tuple)):
            raise RuntimeError(f"trainable_variables must be a list or tuple. But got {type(trainable_variables)}")
        self._variables = trainable_variables

    def __enter__(self) -> OptimizerScope:
        # Keras may have been loaded after the tables were made.
        for variable in self._variables:
            table = getattr(variable, "_value", variable)
            if isinstance(table, EmbeddingVariable):
                register(table)
        return self

    def __exit__(self, *unused: object) -> None:
        pass


def _install_keras_3(interception: Interception) -> None:
    interception.replace(symbols.KERAS_APPLY_GRADIENTS, _with_arguments_of_keras_2)


def _install_keras_2(package: str, interception: Interception) -> None:
    keras = sys.modules[package]
    interception.replace(symbols.KERAS_2_BUILD.of(package), around(_build))
    interception.replace(symbols.KERAS_2_APPLY_GRADIENTS.of(package), functools.partial(_wrap_apply, keras, _Updates))
    interception.replace(
        symbols.KERAS_2_LEGACY_APPLY_GRADIENTS.of(package), functools.partial(_wrap_apply, keras, _LegacyUpdates)
    )


# A module that tells which Keras is loaded, and what replaces its methods. Keras 2 is `keras` with TensorFlow 2.15.
_INSTALLS: tuple[tuple[str, Callable[[Interception], None]], ...] = (
    ("keras.src.optimizers.base_optimizer", _install_keras_3),
    ("tf_keras.src.optimizers.legacy.optimizer_v2", functools.partial(_install_keras_2, "tf_keras")),
    ("keras.src.optimizers.legacy.optimizer_v2", functools.partial(_install_keras_2, "keras")),
)


def _with_arguments_of_keras_2(apply_gradients: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply_gradients)
    def wrapped(
        self: Any, grads_and_vars: Any, name: str | None = None, experimental_aggregate_gradients: bool = True
    ) -> Any:
        del name, experimental_aggregate_gradients
        return apply_gradients(self, grads_and_vars)

    return wrapped


def _build(build: Callable[..., None], self: Any, var_list: Any) -> None:
    """Builds an optimizer, whose slots for a table are in the table: those of Keras have one row, and are not used."""
    with shapes_of_one_row():
        build(self, var_list)


# The attribute of an optimizer of Keras 2 that holds its `_Updates`.
_UPDATES = "_lockstep_sok_updates"


def _wrap_apply(keras: ModuleType, make: type[_Updates], apply_gradients: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply_gradients)
    def wrapped(self: Any, grads_and_vars: Any, name: str | None = None, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        tables = [(g, v) for g, v in pairs if g is not None and isinstance(v, HashedTable)]
        if not tables:
            return apply_gradients(self, pairs, name, *args, **kwargs)
        if _UPDATES not in vars(self):
            # Keras would track an attribute that is set in the usual way.
            vars(self)[_UPDATES] = make(self, keras)
        applied = vars(self)[_UPDATES].apply(tables)
        others = [(g, v) for g, v in pairs if not isinstance(v, HashedTable)]
        with tf.control_dependencies([] if tf.executing_eagerly() else [one for one in applied if one is not None]):
            if any(g is not None for g, _ in others):
                return apply_gradients(self, others, name, *args, **kwargs)
            return self.iterations.assign_add(1, read_value=False)

    return wrapped


class _Updates:
    """The updates of tables by an optimizer of Keras 2 since version 2.11.

    Args:
      optimizer: the optimizer, whose number of iterations is that of steps before this one.
      keras: the package, `keras` or `tf_keras`.

    Raises:
      NotImplementedError: the optimizer has an option that is not implemented for dynamic tables.
    """

    def __init__(self, optimizer: Any, keras: ModuleType) -> None:
        self._optimizer, self._keras = optimizer, keras
        self._wrapper = self._wrap()

    def apply(self, tables: list[tuple[Any, HashedTable]]) -> list[Any]:
        """Applies gradients and returns the operations, or other objects under eager execution."""
        self._begin()
        return [self._apply_to(table, standins.checked(table, gradient)) for gradient, table in tables]

    def _apply_to(self, table: HashedTable, gradient: tf.IndexedSlices) -> Any:
        rule = self._rule(table)
        if rule is None:
            return self._wrapper.apply_to(table, gradient)
        o = self._optimizer
        if any(getattr(o, option, None) for option in ("clipnorm", "clipvalue", "global_clipnorm")):
            gradient = self._clipped(table, summed_by_row(gradient))
        return updates.apply_rule(rule, table, gradient.values, gradient.indices)

    def _wrap(self) -> Any:
        return optimizers.Keras2Wrapper(self._optimizer)

    def _begin(self) -> None:
        self._optimizer._compute_current_learning_rate()

    def _rule(self, table: HashedTable) -> updates.Rule | None:
        del table
        return keras2.rule_of(self._optimizer, self._keras)

    def _clipped(self, table: HashedTable, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        if job.is_shared() and not self._optimizer.clipvalue:
            raise NotImplementedError(
                f"{self._optimizer.name}: clipping by norm is not implemented for the table '{table.m_var_name}' on "
                "several ranks, because each has a part of the gradient; use clipvalue"
            )
        return self._optimizer._clip_gradients([gradient])[0]


class _LegacyUpdates(_Updates):
    """The updates of tables by one of Keras 2's legacy optimizers."""

    def _wrap(self) -> Any:
        with tf.init_scope():
            return optimizers.LegacyWrapper(self._optimizer, self._optimizer.iterations)

    def _begin(self) -> None:
        with tf.init_scope():
            self._optimizer._create_hypers()

    def _rule(self, table: HashedTable) -> updates.Rule | None:
        o = self._optimizer
        return keras2.legacy_rule_of(o, lambda: o._prepare([table])[table.device, table.dtype.base_dtype], self._keras)

    def _clipped(self, table: HashedTable, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        return optimizers.clipped(self._optimizer, [(gradient, table)])[0][0]
