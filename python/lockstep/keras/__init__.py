"""Models with `fit` and `evaluate`, on all workers of a job.

`Model` is one of two classes, with the same arguments beyond Keras' own: where TensorFlow runs eagerly, a model of
Keras 3; in graphs of TensorFlow 1, a model of tensors that needs no Keras. `LazyAdam` is an optimizer of Keras 3, and
`DynamicEmbedding` a layer of it; `export` writes a SavedModel of a model that has such layers.
"""

from typing import Any

import tensorflow as _tf

from lockstep.keras import layers

__all__ = ["DynamicEmbedding", "LazyAdam", "Model", "export", "layers"]


def __getattr__(name: str) -> Any:
    if name == "LazyAdam":
        # It derives from Keras 3's Adam.
        from lockstep._src.updates.lazy_adam_keras import LazyAdam

        return LazyAdam
    if name == "DynamicEmbedding":
        from lockstep._src.keras.dynamic_embedding import DynamicEmbedding

        return DynamicEmbedding
    if name == "export":
        from lockstep._src.keras.export import export

        return export
    if name != "Model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _tf.executing_eagerly():
        from lockstep._src.keras.model import Model
    else:
        from lockstep._src.keras.graph import Model
    return Model
