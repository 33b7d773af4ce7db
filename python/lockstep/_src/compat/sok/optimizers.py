"""SOK's optimizers: wrappers that apply gradients of dynamic variables, and `SGD`.

A wrapper updates the rows of a dynamic variable that have a gradient, and no others. So optimizers whose state decays
in every step are lazy here, as in SOK. A wrapper counts its own steps: the same optimizer may serve other variables.

| optimizer | rows are updated by |
| --- | --- |
| of `tf.compat.v1.train`, or Keras 3 | the engine's fused rule if it has one, otherwise a stand-in |
| of Keras 2, legacy or not | a stand-in (`tables/dynamic/standins.py`): a variable with the touched rows |
"""

from __future__ import annotations

import abc
import contextlib
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.compat.sok import job, slots
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.variables import StaticVariable
from lockstep._src.gradients.keras_optimizers import apply_after_exchange
from lockstep._src.hooks.interception import attribute_replaced
from lockstep._src.tables import updates
from lockstep._src.tables.dynamic import keras_adapter, standins
from lockstep._src.tables.dynamic.variable import shapes_of_one_row

Pairs = Iterable[tuple[Any, Any]]


def wrap(optimizer: Any) -> Wrapper:
    """Returns a wrapper of an optimizer; see `sparse_operation_kit.OptimizerWrapper`."""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return TensorFlow1Wrapper(optimizer)
    for module, cls, wrapper in _KERAS:
        # The module's full name also says which Keras it is: Keras 2 is `tf_keras` or, with TensorFlow 2.15, `keras`.
        base = getattr(sys.modules.get(module), cls, None)
        if base is not None and isinstance(optimizer, base):
            return wrapper(optimizer)
    raise TypeError(f"OptimizerWrapper: got {optimizer!r}, wanted an optimizer of tf.compat.v1.train or of Keras")


class Wrapper(abc.ABC):
    """An optimizer for dynamic variables, which also takes other variables.

    Args:
      optimizer: the optimizer.
    """

    __module__ = "sparse_operation_kit.optimizer"

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    @property
    def optimizer(self) -> Any:
        """The wrapped optimizer."""
        return self._optimizer

    @property
    def lr(self) -> Any:
        """The learning rate, which the wrapped optimizer has as well."""
        return self._optimizer.learning_rate

    def get_slot_names(self) -> list[str]:
        """Returns the names of the slots, the same as in Keras' legacy optimizers."""
        return slots.names(self)

    def get_slot(self, var: Any, name: str) -> Any:
        """Returns a slot: of a dynamic variable its values in the order of `sok.export`, [L, D]; else a variable."""
        return slots.get(self, var, name)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, grads_and_vars: Pairs, global_step: Any = None, name: str | None = None) -> Any:
        """Applies gradients; pairs without a gradient are left out.

        Args:
          grads_and_vars: pairs of a gradient and a variable, of any kind.
          global_step: for an optimizer of TensorFlow 1 a variable to increment; others do not use it.
          name: the name of the operations.

        Returns:
          In a graph, the operation that does it; without gradients None.

        Raises:
          NotImplementedError: the gradient of a dynamic variable is dense, or the optimizer has an option that is not
            implemented for dynamic variables.
        """
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            return None
        tables = [(g, v) for g, v in pairs if isinstance(v, DynamicVariable) and v.is_dynamic]
        others = [(g, v) for g, v in pairs if not (isinstance(v, DynamicVariable) and v.is_dynamic)]
        return self._apply(tables, others, global_step, name)

    @abc.abstractmethod
    def _apply(self, tables: list, others: list, global_step: Any, name: str | None) -> Any:
        """Applies gradients of dynamic variables and of others."""

    @abc.abstractmethod
    def slots_of(self, table: DynamicVariable) -> tuple[Any, Sequence[Any]]:
        """Returns the optimizer that owns the slots of a table, and the slots: objects with a name and an `initial`."""


class TensorFlow1Wrapper(Wrapper):
    """A wrapper of an optimizer of `tf.compat.v1.train`."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        # Numbers that are not for each row, such as powers of Adam's betas.
        self._own_numbers: dict[Any, Any] = {}

    @property
    def lr(self) -> Any:
        """The learning rate with which the optimizer was made."""
        return getattr(self._optimizer, "_lr", getattr(self._optimizer, "_learning_rate", None))

    def _apply(self, tables: list, others: list, global_step: Any, name: str | None) -> Any:
        with self.of_tables():
            return self._optimizer.apply_gradients([*tables, *others], global_step=global_step, name=name)

    def slots_of(self, table: DynamicVariable) -> tuple[Any, Sequence[Any]]:
        """Returns the optimizer that owns the slots of a table, and the slots."""
        o, rule = self._optimizer, updates.rule_of(self._optimizer)
        if rule is not None:
            return o, rule.slots
        stand_in = standins.of(o, table)
        with self.of_tables(), standins.slots_of_any_length(table.dim):
            o._create_slots([stand_in])
        made = [(name, o.get_slot(stand_in, name)) for name in o.get_slot_names()]
        return o, [standins.Slot(n, slot, standins.initial_of(slot)) for n, slot in made if slot is not None]

    @contextlib.contextmanager
    def of_tables(self) -> Iterator[None]:
        """Makes the optimizer have the wrapper's state inside the block."""
        before, self._optimizer._non_slot_dict = self._optimizer._non_slot_dict, self._own_numbers
        try:
            with updates.of_touched_rows():
                yield
        finally:
            self._optimizer._non_slot_dict = before


class KerasWrapper(Wrapper):
    """A wrapper of an optimizer of Keras.

    Args:
      optimizer: the optimizer.
      iterations: a variable with the number of steps, int64; None: the wrapper makes one.
    """

    def __init__(self, optimizer: Any, iterations: Any = None) -> None:
        super().__init__(optimizer)
        if iterations is None:
            with tf.init_scope():
                iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")
        # Schedules and Adam count the calls of `apply_gradients`, regardless of which tables have a gradient.
        self._own_iterations = iterations

    def _apply(self, tables: list, others: list, global_step: Any, name: str | None) -> Any:
        del global_step
        for _, variable in others:
            if isinstance(variable, StaticVariable):
                keras_adapter.register(variable)  # the program may have loaded Keras after it made the variable

        def apply(pairs: list) -> Any:
            tables, others = pairs[: len(pairs) - count], pairs[len(pairs) - count :]
            applied = [self._apply_to_others(others, {} if name is None else {"name": name})] if others else []
            applied += self.apply_to_tables(tables) if tables else []
            with tf.control_dependencies(_in_graph(applied)):
                applied.append(self._own_iterations.assign_add(1, read_value=False))
            return _end_step(_in_graph(applied), [table for _, table in tables])

        count = len(others)
        self._check(tables, others)
        return apply_after_exchange(self._optimizer, [*tables, *others], apply)

    def _apply_to_others(self, others: list, named: dict[str, str]) -> Any:
        # Keras 3's Ftrl refuses a variable without rows, which a localized table is on other ranks.
        with_rows = [(g, v) for g, v in others if v.shape.rank == 0 or v.shape[0] != 0]
        if with_rows:
            return self._optimizer.apply_gradients(with_rows, **named)
        return self._optimizer.iterations.assign_add(1)

    def _check(self, tables: list, others: list) -> None:
        """Raises NotImplementedError if the optimizer clips by a norm that no rank can compute."""
        o = self._optimizer
        by_norm = [name for name in ("clipnorm", "global_clipnorm") if getattr(o, name, None)]
        spread = job.is_shared() and any(isinstance(v, StaticVariable) for _, v in others)
        if (by_norm and (spread or (tables and job.is_shared()))) or (tables and getattr(o, "global_clipnorm", None)):
            raise NotImplementedError(
                f"{type(o).__name__}: {by_norm[0]} is not implemented for SOK's variables here, because their "
                "gradients are on several ranks or are applied one by one; use clipvalue, or clip the gradients before"
            )

    @abc.abstractmethod
    def apply_to_tables(self, tables: list) -> list:
        """Applies gradients of dynamic variables."""


def _in_graph(applied: list) -> list:
    """Returns the operations and tensors that a graph's later operations can wait for."""
    return [one for one in applied if isinstance(one, (tf.Tensor, tf.Operation)) and not tf.executing_eagerly()]


class LegacyWrapper(KerasWrapper):
    """A wrapper of one of Keras 2's legacy optimizers; see `KerasWrapper`."""

    def __init__(self, optimizer: Any, iterations: Any = None) -> None:
        super().__init__(optimizer, iterations)
        if type(optimizer).__name__ == "Nadam":
            raise NotImplementedError(
                "OptimizerWrapper: the legacy Nadam is not implemented for dynamic variables, because it prepares a "
                "step for all variables at once; use tf.keras.optimizers.Nadam"
            )

    def apply_to_tables(self, tables: list) -> list:
        """Applies gradients of dynamic variables."""
        return [self.apply_to(table, standins.checked(table, gradient)) for gradient, table in tables]

    def stand_in(self, table: DynamicVariable) -> Any:
        """Returns the variable that stands in for a table, with slots."""
        o, stand_in = self._optimizer, standins.of(self._optimizer, table)
        if not stand_in.slots:
            with tf.init_scope(), attribute_replaced(o, "_iterations", lambda _: self._own_iterations):
                o._create_hypers()
                with standins.slots_of_any_length(table.dim):
                    o._create_slots([stand_in])
                made = {name: o.get_slot(stand_in, name) for name in o.get_slot_names()}
                stand_in.slots = [standins.Slot(n, slot, standins.initial_of(slot)) for n, slot in made.items()]
        return stand_in

    def slots_of(self, table: DynamicVariable) -> tuple[Any, Sequence[Any]]:
        """Returns the optimizer that owns the slots of a table, and the slots."""
        return self._optimizer, self.stand_in(table).slots

    def apply_to(self, table: DynamicVariable, gradient: tf.IndexedSlices) -> Any:
        """Applies the gradient of a dynamic variable through its stand-in."""
        stand_in, o = self.stand_in(table), self._optimizer

        def update(summed: tf.Tensor) -> Any:
            numbers = tf.range(tf.shape(summed)[0])
            with attribute_replaced(o, "_iterations", lambda _: self._own_iterations):
                ((changed, _),) = clipped(o, [(tf.IndexedSlices(summed, numbers), stand_in)])
                given = {"apply_state": o._prepare([stand_in])} if "apply_state" in o._sparse_apply_args else {}
                return o._resource_apply_sparse_duplicate_indices(changed.values, stand_in, changed.indices, **given)

        return standins.update_rows(o, table, gradient, stand_in.slots, update)


def clipped(optimizer: Any, pairs: list) -> list:
    """Returns pairs with the gradients that a legacy optimizer's options leave of them."""
    if job.is_shared() and (optimizer.clipnorm or optimizer.global_clipnorm):
        raise NotImplementedError(
            f"{type(optimizer).__name__}: clipping by norm is not implemented for dynamic variables on several ranks, "
            "because each has a part of the gradient; use clipvalue"
        )
    return optimizer._transform_gradients(pairs) if hasattr(optimizer, "_transform_gradients") else pairs


class CloningWrapper(KerasWrapper):
    """A wrapper that has a clone of the optimizer for each dynamic variable, with the same learning rate.

    These optimizers learn all their variables when they are built, and would refuse others later.
    """

    def clone(self, table: DynamicVariable) -> Any:
        """Returns the optimizer of a table, built, and with the current learning rate."""
        o = self._optimizer
        # The table holds its clones, so they exist as long as the table and the wrapper.
        clones = table.__dict__.setdefault("_clones", weakref.WeakKeyDictionary())
        if self not in clones:
            for option in ("use_ema", "weight_decay", "gradient_accumulation_steps"):
                if getattr(o, option, None):
                    raise NotImplementedError(
                        f"OptimizerWrapper: {option} of {type(o).__name__} is not implemented for dynamic variables"
                    )
            with tf.init_scope():
                clone = type(o).from_config(o.get_config())
                self._build(clone, table)
            clones[self] = clone
        clones[self]._learning_rate = o._learning_rate  # the program may have assigned another one
        return clones[self]

    def counting(self, clone: Any) -> Any:
        """Gives a clone the number of the wrapper's steps; returns the operation, in a graph."""
        return clone.iterations.assign(tf.cast(self._own_iterations, clone.iterations.dtype))

    def slots_of(self, table: DynamicVariable) -> tuple[Any, Sequence[Any]]:
        """Returns the optimizer that owns the slots of a table, and the slots."""
        clone = self.clone(table)
        rule = updates.rule_of(clone)  # None for every optimizer of Keras 2
        return clone, standins.of(clone, table).slots if rule is None else rule.slots

    @abc.abstractmethod
    def _build(self, clone: Any, table: DynamicVariable) -> None:
        """Makes the slots of a clone."""


class Keras3Wrapper(CloningWrapper):
    """A wrapper of an optimizer of Keras 3.

    Raises:
      NotImplementedError: in a graph of TensorFlow 1, where Keras 3 does not run.
    """

    def __init__(self, optimizer: Any) -> None:
        with tf.init_scope():
            if not tf.executing_eagerly():
                raise NotImplementedError(
                    f"OptimizerWrapper: got {type(optimizer).__name__} of Keras 3 in a graph of TensorFlow 1, wanted "
                    "an optimizer of tf.compat.v1.train or of Keras 2"
                )
        super().__init__(optimizer)

    def _build(self, clone: Any, table: DynamicVariable) -> None:
        keras_adapter.register(table)  # the program may have loaded Keras after it made the table
        with shapes_of_one_row():
            clone.build([table])

    def apply_to_tables(self, tables: list) -> list:
        """Applies gradients of dynamic variables."""
        with updates.of_touched_rows():
            for gradient, table in tables:
                clone = self.clone(table)
                self.counting(clone)
                clone.apply([gradient], [table])
        return []


class Keras2Wrapper(CloningWrapper):
    """A wrapper of an optimizer of Keras 2 that is not a legacy one."""

    def _build(self, clone: Any, table: DynamicVariable) -> None:
        stand_in = standins.of(clone, table)
        with standins.slots_of_any_length(table.dim):
            clone.build([stand_in])
        made = {
            attribute: values[0]
            for attribute, values in vars(clone).items()
            if isinstance(values, list) and len(values) == 1 and isinstance(values[0], tf.Variable)
            if values[0] is not stand_in and values[0].shape.as_list() == [None, table.dim]
        }
        stand_in.slots = [standins.Slot(n.strip("_"), slot, standins.initial_of(slot)) for n, slot in made.items()]

    def apply_to_tables(self, tables: list) -> list:
        """Applies gradients of dynamic variables."""
        return [self.apply_to(table, standins.checked(table, gradient)) for gradient, table in tables]

    def apply_to(self, table: DynamicVariable, gradient: tf.IndexedSlices) -> Any:
        """Applies the gradient of a dynamic variable through its stand-in."""
        clone = self.clone(table)
        with tf.init_scope():
            clone._compute_current_learning_rate()  # the first call with a schedule makes a variable
        stand_in = standins.of(clone, table)

        def update(summed: tf.Tensor) -> Any:
            count = tf.shape(summed)[0]
            # Some optimizers make slices dense; the stand-in has one row more.
            slices = tf.IndexedSlices(summed, tf.range(count), tf.stack([count + 1, table.dim]))
            with tf.control_dependencies(_in_graph([self.counting(clone)])):
                clone._compute_current_learning_rate()
                (changed,) = clone._clip_gradients([slices])
                return clone.update_step(changed, stand_in)

        return standins.update_rows(clone, table, gradient, stand_in.slots, update)


# The module of the base class of a Keras' optimizers, its name, and the wrapper; legacy optimizers are first.
_KERAS = (
    ("tf_keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2", LegacyWrapper),
    ("keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2", LegacyWrapper),
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer", Keras3Wrapper),
    ("tf_keras.src.optimizers.optimizer", "Optimizer", Keras2Wrapper),
    ("keras.src.optimizers.optimizer", "Optimizer", Keras2Wrapper),
)


class SGD:
    """Gradient descent; see `sparse_operation_kit.SGD`."""

    __module__ = "sparse_operation_kit"

    def __init__(self, lr: float) -> None:
        with tf.init_scope():
            self._lr = tf.Variable(lr, dtype=tf.float32, trainable=False, name="learning_rate")
        self.name = "SGD"

    @property
    def lr(self) -> tf.Variable:
        """The learning rate, a variable."""
        return self._lr

    def slots_of(self, table: DynamicVariable) -> tuple[Any, Sequence[Any]]:
        """Returns itself, and no slots; see `Wrapper.slots_of`."""
        del table
        return self, ()

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, grads_and_vars: Pairs, global_step: Any = None, name: str | None = None) -> Any:
        """Subtracts gradients times the learning rate; see `Wrapper.apply_gradients`."""
        del global_step
        applied = [self._apply_to(v, g) for g, v in grads_and_vars if g is not None]
        return None if tf.executing_eagerly() or not applied else tf.group(*applied, name=name)

    def _apply_to(self, variable: Any, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return variable.assign_sub(gradient * tf.cast(self._lr, gradient.dtype), read_value=False)
        if not (isinstance(variable, DynamicVariable) and variable.is_dynamic):
            scaled = gradient.values * tf.cast(self._lr, gradient.values.dtype)
            return variable.scatter_sub(tf.IndexedSlices(scaled, gradient.indices))
        gradient = standins.checked(variable, gradient)
        rule = updates.Rule(self, "sgd", (), lambda: {"learning_rate": self._lr}, lambda *_: None)
        applied = updates.apply_rule(rule, variable, tf.cast(gradient.values, tf.float32), gradient.indices)
        return _end_step([applied], [variable])


def _end_step(applied: list, tables: list[DynamicVariable]) -> tf.Operation | None:
    """Ends the step in tables after updates; in a graph it returns the operation."""
    tables = [table for table in tables if table.has_step]
    if tf.executing_eagerly():
        for table in tables:
            table.end_step()
        return None
    with tf.control_dependencies(applied):
        return tf.group(*[table.end_step() for table in tables], *applied)
