"""Sets of variables of TensorFlow or Keras: for example those whose gradients stay on this rank."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from lockstep._src.engine import apart
from lockstep._src.engine.context import context
from lockstep._src.tables.sharded import is_table


def key(variable: Any) -> int:
    """Returns the identity of a variable; a `keras.Variable` shares it with the TensorFlow variable that it holds."""
    return id(getattr(variable, "_value", variable))


def gradient_is_sum(table: Any) -> bool:
    """Returns whether a table's gradient is the sum over all ranks' losses. Otherwise it is their mean."""
    if context.options.embedding_gradient == "sum":
        return True
    return getattr(getattr(table, "_value", table), "sums_gradients", False) and not apart.is_scope_open()


class VariableSet:
    """A set of variables that does not keep them alive."""

    def __init__(self) -> None:
        self._variables: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, variables: Sequence[Any]) -> None:
        """Adds variables."""
        for v in variables:
            self._variables[key(v)] = getattr(v, "_value", v)

    def discard(self, variables: Sequence[Any]) -> None:
        """Removes variables."""
        for v in variables:
            self._variables.pop(key(v), None)

    def __contains__(self, variable: Any) -> bool:
        return key(variable) in self._variables


class LocalVariableSet:
    """The variables whose gradients stay on this rank, for one optimizer or tape: tables, and those that are added."""

    # The local variables of all optimizers and tapes.
    anywhere = VariableSet()

    def __init__(self) -> None:
        self._variables: dict[int, Any] = {}
        self._layers: list[Any] = []

    def add(self, variable: Any) -> None:
        """Adds a variable."""
        self._variables[key(variable)] = variable
        self.anywhere.add([variable])

    def add_layer(self, layer: Any) -> None:
        """Adds the weights that a layer of Keras has, or will have."""
        self._layers.append(layer)

    def among(self, variables: Sequence[Any]) -> list[bool]:
        """Returns for each variable whether its gradient stays on this rank."""
        weights = [v for layer in self._layers if layer.built for v in layer.weights]
        local = {*self._variables, *(key(v) for v in weights)}
        return [key(v) in local or is_table(v) for v in variables]
