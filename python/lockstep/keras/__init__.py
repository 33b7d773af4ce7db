"""Models with `fit` and `evaluate`, on all workers of a job.

`Model` is one of two classes, with the same arguments beyond Keras' own: where TensorFlow runs eagerly, a model of
Keras 3; in graphs of TensorFlow 1, a model of tensors that needs no Keras. `LazyAdam` is an optimizer of Keras 3, and
`DynamicEmbedding` a layer of it; `export` writes a SavedModel of a model that has such layers.

`keras.models.load_model` finds `LazyAdam` and `DynamicEmbedding` in a saved model when this module has been imported.
"""

import importlib
import sys
from typing import Any

import tensorflow as _tf

import lockstep._assembly  # noqa: F401
from lockstep.keras import layers

__all__ = ["DynamicEmbedding", "LazyAdam", "Model", "export", "layers"]

# Public name -> the module that holds it. All of them import Keras 3.
_EXPORTS = {
    "DynamicEmbedding": "lockstep._src.keras.dynamic_embedding",
    "LazyAdam": "lockstep._src.tables.updates.lazy_adam_keras",
    "export": "lockstep._src.keras.export",
}


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = _of_keras_3(_EXPORTS[name], name)
        globals()[name] = value
        return value
    if name != "Model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not kept: a program may leave eager execution.
    if _tf.executing_eagerly():
        return _of_keras_3("lockstep._src.keras.models.model", name)
    return importlib.import_module("lockstep._src.keras.models.graph_model").Model


def _of_keras_3(module: str, name: str) -> Any:
    keras = importlib.import_module("keras")
    if not keras.__version__.startswith("3"):
        raise ImportError(
            f"{__name__}.{name} needs Keras 3 where TensorFlow runs eagerly, got Keras {keras.__version__}: install "
            "TensorFlow 2.16 or later"
        )
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register_classes() -> None:
    """Registers the classes of saved models with Keras 3, where this program has it.

    TensorFlow imports the Keras that `tf.keras` is, without most of its modules: Keras 3, unless the program asks for
    Keras 2. The classes are of no use in graphs of TensorFlow 1.
    """
    if _tf.executing_eagerly() and getattr(sys.modules.get("keras"), "__version__", "").startswith("3"):
        for name in ("DynamicEmbedding", "LazyAdam"):
            importlib.import_module(_EXPORTS[name])


_register_classes()
