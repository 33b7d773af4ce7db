"""Classes that extend one of Keras, which is chosen when an object is made.

A program has Keras 3 or Keras 2, and `tf.keras` is its choice. SOK's layers and optimizers have names before Keras is
loaded, because `import sparse_operation_kit` does not load it. So such a class does not extend a class of Keras itself.
A call of it makes an object of a subclass that does:

    class Layer(ExtendsKeras): ...        Layer(...)  ->  an object of type("Layer", (Layer, keras.layers.Layer), {})

`isinstance(object, Layer)` holds for all of them, and programs may derive classes of their own.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lockstep._src.engine.thread_value import ThreadValue

_chosen: ThreadValue[ModuleType | None] = ThreadValue(None)


def keras_of_program() -> ModuleType:
    """Returns the Keras of the program, `tf.keras`, which this loads."""
    return _chosen.value or tf.keras


def using(keras: ModuleType) -> Any:
    """Returns a context in which layers and optimizers come from another Keras than `tf.keras`."""
    return _chosen.holding(keras)


def is_keras_3(keras: ModuleType) -> bool:
    """Returns whether a package is Keras 3; `tf.keras` of Keras 2 may not have a version."""
    return getattr(keras, "__version__", "2").startswith("3")


def is_of_keras_3(layer: Any) -> bool:
    """Returns whether a layer is one of Keras 3."""
    module = sys.modules.get("keras.src.layers.layer")
    return module is not None and isinstance(layer, module.Layer)


if TYPE_CHECKING:
    from keras.layers import Layer
else:
    Layer = object  # `_joined` adds the class of the program's Keras


class ExtendsKeras(Layer):
    """Base of the classes that this module describes."""

    # Whether the class extends one of Keras.
    _is_joined = False

    @classmethod
    def _base_in(cls, keras: ModuleType) -> type:
        """Returns the class of Keras that is extended."""
        raise NotImplementedError

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes an object of a subclass that extends a class of Keras."""
        if cls._is_joined:
            make = super().__new__
            return make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        # Keras 2 replaces bases of a layer's class in a graph of TensorFlow 1, so classes for graphs are others.
        # mypy confuses `__hash__` of a class with `__hash__` of its objects, so it gets a plain type.
        own: type = cls
        joined = _joined(own, cls._base_in(keras_of_program()), tf.compat.v1.executing_eagerly_outside_functions())
        return joined.__new__(joined, *args, **kwargs)


@functools.cache
def _joined(cls: type, base: type, eager: bool) -> Any:
    del eager
    same = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(base)(cls.__name__, (cls, base), {**same, "_is_joined": True})
