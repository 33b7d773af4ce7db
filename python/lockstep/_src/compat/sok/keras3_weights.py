"""Tables of SOK 1.x as weights of layers of Keras 3, which only knows variables of its own.

This module imports Keras 3; a layer imports it when it is made.
"""

from __future__ import annotations

from typing import Any

from keras.src import backend

from lockstep._src.keras.dynamic_embedding import TableWeight


class _Weight(backend.Variable):
    """A weight whose variable of TensorFlow exists already.

    Args:
      variable: the variable.
      shape: the shape that Keras sees, without unknown dimensions.
      name: the name, without "/".
    """

    def __init__(self, variable: Any, shape: Any, name: str) -> None:
        self._given = variable
        super().__init__(lambda *_, **__: None, shape=shape, dtype="float32", trainable=True, autocast=False, name=name)

    def _initialize_with_initializer(self, initializer: Any) -> None:
        self._value = self._given

    def _deferred_initialize(self) -> None:
        """Does nothing: the variable exists."""


class _DynamicWeight(_Weight, TableWeight):
    """A dynamic table as a weight; Keras sees one row."""


def weight_of(variable: Any, name: str) -> backend.Variable:
    """Returns a weight for a table."""
    name = name.replace("/", "_")
    if getattr(variable, "is_dynamic", False):
        return _DynamicWeight(variable, (1, variable.dim), name)
    return _Weight(variable, tuple(variable.shape), name)
