"""`hb.keras`: models with `fit` and `evaluate` on all workers."""

from typing import Any

import lockstep.keras
from hybridbackend.tensorflow.keras import layers

__all__ = ["Model", "layers"]


def __getattr__(name: str) -> Any:
    # `Model` is one class where TensorFlow runs eagerly, and another in graphs.
    return getattr(lockstep.keras, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *lockstep.keras.__all__})
