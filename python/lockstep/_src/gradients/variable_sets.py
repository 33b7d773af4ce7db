"""Sets of variables of TensorFlow or Keras: for example those whose gradients stay on this rank."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any


def key(variable: Any) -> int:
    """Returns the identity of a variable; a `keras.Variable` has that of the TensorFlow variable that it holds."""
    return id(getattr(variable, "_value", variable))


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
    """The variables whose gradients stay on this rank, for one optimizer or tape."""

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
        """Returns for each variable whether it is in the set."""
        weights = [v for layer in self._layers if layer.built for v in layer.weights]
        local = {*self._variables, *(key(v) for v in weights)}
        return [key(v) in local for v in variables]
