"""Lockstep: synchronous distributed training of deep recommenders on TensorFlow.

Names are imported at their first use, so that `lockstep.launch` does not import TensorFlow. Under a launcher, this
module also begins to watch for the error that ends the program.
"""

import importlib as _importlib
import os as _os
from typing import Any as _Any

# Public name -> the module that holds it.
_EXPORTS = {
    "Context": "lockstep._src.engine.context",
    "allgather": "lockstep._src.collectives.ordered",
    "allreduce": "lockstep._src.collectives.ordered",
    "alltoall": "lockstep._src.collectives.ordered",
    "barrier": "lockstep._src.collectives.ordered",
    "broadcast": "lockstep._src.collectives.ordered",
    "buildinfo": "lockstep._src.engine.build",
    "context": "lockstep._src.engine.context",
    "embedding_scope": "lockstep.train",
    "end_step": "lockstep._src.engine.steps",
    "export_delta": "lockstep._src.saving.deltas",
    "init": "lockstep._src.engine.context",
    "plan": "lockstep._src.tables.placement.plan",
    "rank": "lockstep._src.engine.context",
    "reducescatter": "lockstep._src.collectives.ordered",
    "scope": "lockstep.train",
    "shutdown": "lockstep._src.engine.context",
    "size": "lockstep._src.engine.context",
    "stats": "lockstep._src.collectives.statistics",
}

# Public modules, which programs also use without an import of their own: `lockstep.data.ParquetDataset`.
_MODULES = frozenset({"data", "embedding", "keras", "metrics", "train"})

__all__ = sorted({*_EXPORTS, *_MODULES})

# The version of the installed distribution, which has it from pyproject.toml.
__version__: str


def __getattr__(name: str) -> _Any:
    value: _Any
    if name in _MODULES:
        return _importlib.import_module(f"{__name__}.{name}")
    if name == "__version__":
        value = _importlib.import_module("importlib.metadata").version("lockstep-tf")
    elif name in _EXPORTS:
        value = getattr(_importlib.import_module(_EXPORTS[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if not name.startswith("_")), *__all__, "__version__"})


# A launcher shows each error once. For errors before the program has joined its job, the watch begins here.
if "LOCKSTEP_NOTES" in _os.environ:
    from lockstep._src.engine import program_end as _program_end

    _program_end.watch()
