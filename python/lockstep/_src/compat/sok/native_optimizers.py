"""Makes optimizers of Keras update the tables of SOK 1.x, which `OptimizerScope` promises.

Optimizers of TensorFlow 1 and Keras 3 know dynamic tables (`tables/dynamic/tensorflow1_adapter.py`), but optimizers of
Keras 2 do not. Therefore some methods are replaced from the first table on.

| replaced | result |
| --- | --- |
| `apply_gradients` of Keras 2's optimizers, legacy or not | dynamic tables are updated by rows |
| `build` of Keras 2's optimizers | it leaves dynamic tables out; a `LossScaleOptimizer` calls it |
| `apply_gradients` of Keras 3's optimizers | it accepts arguments of Keras 2, which 1.x's programs pass |

In a strategy of TensorFlow, static tables of Keras 2 are treated like dynamic ones.

A rule of the engine computes what the optimizer does for an ordinary variable: Adam's moments decay in all rows.
An optimizer without a rule updates the rows that have a gradient, through a stand-in.

Each table belongs to only one rank's optimizer, and its gradient is a sum over the ranks already. So no strategy
aggregates it.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.collectives.slices import summed_by_row
from lockstep._src.compat.sok import job, optimizers
from lockstep._src.compat.sok.embedding_tables import EmbeddingVariable, HashedTable
from lockstep._src.compat.sok.variables import StaticVariable
from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook_set import HookSet
from lockstep._src.hooks.interception import Interception, around
from lockstep._src.tables import updates
from lockstep._src.tables.dynamic import keras_adapter, standins
from lockstep._src.tables.updates import keras2

_hooks = HookSet(symbols.SOK_LAYERS)


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
    """Builds an optimizer for the variables that Keras updates; a `LossScaleOptimizer` passes all."""
    build(self, [variable for variable in var_list if not _is_ours(variable)])


def _is_ours(variable: Any) -> bool:
    """Returns whether this module applies gradients of a variable, and not Keras 2.

    In a strategy of TensorFlow, Keras would ask for copies of a static table on all replicas.
    """
    return isinstance(variable, HashedTable) or (isinstance(variable, StaticVariable) and tf.distribute.has_strategy())


# The attribute of an optimizer of Keras 2 that holds its `_Updates`.
_UPDATES = "_lockstep_sok_updates"


def _wrap_apply(keras: ModuleType, make: type[_Updates], apply_gradients: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply_gradients)
    def wrapped(self: Any, grads_and_vars: Any, name: str | None = None, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        tables = [(g, v) for g, v in pairs if g is not None and _is_ours(v)]
        if not tables:
            return apply_gradients(self, pairs, name, *args, **kwargs)
        if _UPDATES not in vars(self):
            # Keras would track an attribute that is set in the usual way.
            vars(self)[_UPDATES] = make(self, keras)
        applied = vars(self)[_UPDATES].apply(tables)
        others = [(g, v) for g, v in pairs if not _is_ours(v)]
        with tf.control_dependencies([] if tf.executing_eagerly() else [one for one in applied if one is not None]):
            if any(g is not None for g, _ in others):
                return apply_gradients(self, others, name, *args, **kwargs)
            return self.iterations.assign_add(1, read_value=False)

    return wrapped


class _Updates:
    """The updates of tables by an optimizer of Keras 2 since version 2.11.

    Args:
      optimizer: the optimizer; its number of iterations counts the steps before this one.
      keras: the package, `keras` or `tf_keras`.

    Raises:
      NotImplementedError: the optimizer has an option that is not implemented for dynamic tables.
    """

    def __init__(self, optimizer: Any, keras: ModuleType) -> None:
        for option in ("use_ema", "weight_decay"):
            if getattr(optimizer, option, None):
                raise NotImplementedError(f"{type(optimizer).__name__}: {option} is not implemented for dynamic tables")
        self._optimizer, self._keras = optimizer, keras
        # The slots of static tables, by table and name.
        self._slots: dict[Any, dict[str, Any]] = {}
        self._wrapper = self._wrap()

    def apply(self, tables: list[tuple[Any, Any]]) -> list[Any]:
        """Applies gradients and returns the operations, or other objects under eager execution.

        Raises:
          NotImplementedError: a gradient is dense; or there is no rule, in a strategy of TensorFlow.
        """
        self._begin()
        return [self._apply_to(table, gradient) for gradient, table in tables]

    def _apply_to(self, table: Any, gradient: Any) -> Any:
        rule, o = self._rule(table), self._optimizer
        is_static = isinstance(table, StaticVariable)
        if not is_static:
            gradient = standins.checked(table, gradient)
        elif not isinstance(gradient, tf.IndexedSlices):
            raise NotImplementedError(f"table '{table.logical_name}': its gradient is dense, wanted tf.IndexedSlices")
        if rule is None and tf.distribute.has_strategy():
            raise NotImplementedError(
                f"{type(o).__name__} is not implemented for tables in a strategy of TensorFlow, wanted SGD, Adagrad, "
                "Adam or FTRL without further options"
            )
        if rule is None:
            return self._wrapper.apply_to(table, gradient)
        if any(getattr(o, option, None) for option in ("clipnorm", "clipvalue", "global_clipnorm")):
            gradient = self._clipped(table, summed_by_row(gradient))
        if is_static:
            rule = dataclasses.replace(rule, slot_of=functools.partial(self._slot_of, rule))
        return updates.apply_rule(rule, table, gradient.values, gradient.indices)

    def _slot_of(self, rule: updates.Rule, table: StaticVariable, name: str) -> Any:
        """Returns the slot of a static table, a variable that no strategy knows."""
        slots = self._slots.setdefault(table.ref(), {})
        if name not in slots:
            initial = next(slot.initial for slot in rule.slots if slot.name == name)
            with tf.init_scope():
                slots[name] = resource_variable_ops.ResourceVariable(
                    tf.fill(table.shape, tf.cast(initial, table.dtype)), trainable=False, name=name
                )
        return slots[name]

    def _wrap(self) -> Any:
        return optimizers.Keras2Wrapper(self._optimizer, self._optimizer.iterations)

    def _begin(self) -> None:
        self._optimizer._compute_current_learning_rate()

    def _rule(self, table: Any) -> updates.Rule | None:
        del table
        return keras2.rule_of(self._optimizer, self._keras)

    def _clipped(self, table: Any, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        if job.is_shared() and not self._optimizer.clipvalue:
            raise NotImplementedError(
                f"{self._optimizer.name}: clipping by norm is not implemented for the table '{table.logical_name}' on "
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

    def _rule(self, table: Any) -> updates.Rule | None:
        o = self._optimizer
        return keras2.legacy_rule_of(o, lambda: o._prepare([table])[table.device, table.dtype.base_dtype], self._keras)

    def _clipped(self, table: Any, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        return optimizers.clipped(self._optimizer, [(gradient, table)])[0][0]
