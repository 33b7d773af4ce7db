"""Models with `fit` and `evaluate`, on all workers of a job.

`Model` is one of two classes, which have the same arguments in addition to Keras' own. In eager mode it is a Keras 3
model; in graphs of TensorFlow 1, it is a model of tensors that needs no Keras. `LazyAdam` is a Keras 3 optimizer, and
`DynamicEmbedding` a Keras 3 layer; `export` writes a SavedModel of a model with such layers. `DistributedEmbedding` is
the layer of Keras RS whose tables may be dynamic, by `TableConfig(vocabulary_size=None)`. It needs the package
keras-rs. `StatsCallback` writes the job's statistics for TensorBoard.

After this module has been imported, `keras.models.load_model` can load models with `LazyAdam` and `DynamicEmbedding`.
"""

import importlib
import importlib.util
import sys
from typing import Any

import tensorflow as _tf

from lockstep import _assembly  # noqa: F401
from lockstep.keras import layers

__all__ = [
    "DistributedEmbedding",
    "DynamicEmbedding",
    "LazyAdam",
    "Model",
    "StatsCallback",
    "TableConfig",
    "export",
    "layers",
]

# Public name -> the module that holds it. All of them import Keras 3, except for those in _OF_ANY_KERAS.
_EXPORTS = {
    "DistributedEmbedding": "lockstep._src.keras.distributed_embedding",
    "DynamicEmbedding": "lockstep._src.keras.dynamic_embedding",
    "LazyAdam": "lockstep._src.tables.updates.lazy_adam_keras",
    "StatsCallback": "lockstep._src.keras.stats_callback",
    "TableConfig": "lockstep._src.keras.distributed_embedding",
    "export": "lockstep._src.keras.saved_model_export",
}


_OF_ANY_KERAS = frozenset({"StatsCallback"})


def __getattr__(name: str) -> Any:
    if name in _OF_ANY_KERAS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    if name in _EXPORTS:
        value = _import_with_keras_3(_EXPORTS[name], name)
        globals()[name] = value
        return value
    if name != "Model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The class is not stored in globals(), because a program may still disable eager execution.
    if _tf.executing_eagerly():
        return _import_with_keras_3("lockstep._src.keras.models.model", name)
    return importlib.import_module("lockstep._src.keras.models.graph_model").Model


def _import_with_keras_3(module: str, name: str) -> Any:
    keras = importlib.import_module("keras")
    if not keras.__version__.startswith("3"):
        raise ImportError(
            f"{__name__}.{name} needs Keras 3 in eager mode, got Keras {keras.__version__}: install TensorFlow 2.16 or "
            "later"
        )
    if module.endswith(".distributed_embedding"):
        needs = f"{__name__}.{name} needs Keras RS"
        if importlib.util.find_spec("keras_rs") is None:
            raise ImportError(f"{needs}, got no package keras_rs: pip install keras-rs")
        if not hasattr(_tf.tpu.experimental.embedding, "SparseCoreEmbeddingConfig"):
            raise ImportError(f"{needs}, which needs TensorFlow 2.17 or later, got TensorFlow {_tf.__version__}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _register_classes() -> None:
    """Registers the classes of saved models with Keras 3, if the program uses it.

    TensorFlow imports the version of Keras that is `tf.keras`, without most of its modules. This is Keras 3, unless the
    program has selected Keras 2. The classes cannot be used in graphs of TensorFlow 1.
    """
    if _tf.executing_eagerly() and getattr(sys.modules.get("keras"), "__version__", "").startswith("3"):
        for name in ("DynamicEmbedding", "LazyAdam", *(["DistributedEmbedding"] if "keras_rs" in sys.modules else [])):
            importlib.import_module(_EXPORTS[name])


_register_classes()
