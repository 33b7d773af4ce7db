"""Lockstep: synchronous distributed training of deep recommenders on TensorFlow.

Names are imported when they are first asked for, so that `lockstep.launch` never waits for TensorFlow.
"""

import importlib
from typing import Any

# Public name -> the module that holds it.
_EXPORTS = {
    "Context": "lockstep._src.context",
    "allgather": "lockstep._src.collectives",
    "allreduce": "lockstep._src.collectives",
    "alltoall": "lockstep._src.collectives",
    "barrier": "lockstep._src.collectives",
    "broadcast": "lockstep._src.collectives",
    "buildinfo": "lockstep._src.build",
    "context": "lockstep._src.context",
    "embedding_scope": "lockstep._src.scope",
    "init": "lockstep._src.context",
    "rank": "lockstep._src.context",
    "reducescatter": "lockstep._src.collectives",
    "scope": "lockstep._src.scope",
    "shutdown": "lockstep._src.context",
    "size": "lockstep._src.context",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
